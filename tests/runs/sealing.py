"""Change a file of a sealed run as its owner might, with a new seal, or as a fault would, without one."""

from qkv.storage import seal_files
from qkv.train.run import SEALED


def reseal(folder):
    """Write a manifest of what is in a run folder now."""
    names = [name for name in (*SEALED, "model.safetensors") if (folder / name).exists()]
    seal_files(folder, {name: (folder / name).read_bytes() for name in names})
    return folder


def flip(path, bit=0, byte=-1):
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)
