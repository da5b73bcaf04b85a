import subprocess
import sys
from hashlib import sha256

from qkv import storage
from qkv.storage import package_member
from tests.storage.files import refused


def test_a_member_of_an_installed_package(tmp_path, monkeypatch):
    about = tmp_path / "somebody-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.2\n")
    member = tmp_path / "somebody" / "data" / "words.txt"
    member.parent.mkdir(parents=True)
    member.write_bytes(b"words")
    (tmp_path / "somebody" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    right = sha256(b"words").hexdigest()
    assert package_member("somebody", "1.2", "somebody/data/words.txt", right) == member
    with refused(what='somebody 1.2 is installed, but 1.3 is needed: pip install "qkv[data]"', where=""):
        package_member("somebody", "1.3", "somebody/data/words.txt", right)
    with refused(what=f"words.txt of somebody 1.2 has sha256 {right}, not {'0' * 64}", where=member.parent):
        package_member("somebody", "1.2", "somebody/data/words.txt", "0" * 64)
    with refused(what="there is no file word.txt", where=member.parent, nearest="words.txt"):
        package_member("somebody", "1.2", "somebody/data/word.txt", right)
    with refused(what='the package nobody-here 1.2 is not installed: pip install "qkv[data]"', where=""):
        package_member("nobody-here", "1.2", "x", right)
    assert "somebody" not in sys.modules


def test_storage_needs_no_torch():
    code = "import sys, qkv.storage; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert storage.FORMAT == 2
