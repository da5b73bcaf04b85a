import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.cli.run import qkv


def test_help_lists_the_commands():
    text = qkv("--help")
    assert all(command in text for command in ("list", "check", "bench"))


@pytest.mark.process
def test_help_does_not_import_torch():
    code = (
        "import sys\n"
        "from qkv.cli import main\n"
        "sys.argv = ['qkv', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_version():
    assert qkv("--version") == f"{version('qkv')}\n"


def test_an_unknown_command_is_wrong_use():
    assert "No such command 'chek'" in qkv("chek", code=2)
