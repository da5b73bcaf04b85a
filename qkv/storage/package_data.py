"""Data files inside installed packages, read without importing the package."""

from hashlib import file_digest
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from qkv.errors import QkvError
from qkv.storage.atomic import open_file


def package_member(package: str, version: str, member: str, sha256: str) -> Path:
    """Return the path of a data file of an installed package, after checking its version and its sha256."""
    install = 'pip install "qkv[data]"'
    try:
        found = distribution(package)
    except PackageNotFoundError:
        raise QkvError(f"the package {package} {version} is not installed: {install}") from None
    if found.version != version:
        raise QkvError(f"{package} {found.version} is installed, but {version} is needed: {install}")
    path = Path(str(found.locate_file(member)))
    with open_file(path) as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise QkvError(f"{path.name} of {package} {version} has sha256 {digest}, not {sha256}", path.parent)
    return path
