"""Weights of the tagger of parts of speech: `python -m benchmarks.pack_tagger WHEEL`.

The weights are those of textblob-aptagger 0.2.0 on the package index (an averaged perceptron, MIT license):

    pip download --no-deps textblob-aptagger==0.2.0

Weights under `MIN_WEIGHT` are left out, the others rounded to eighths. Writes tagger.txt.xz in
qkv/pronunciation/heteronyms.
"""

import argparse
import io
import lzma
import pickle
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from qkv.pronunciation.heteronyms.tagger import WEIGHTS

MIN_WEIGHT = 1.0
WHEEL_SHA256 = "1ed281f37b3646475503ce77347d0ed92a5f4de176a63c6ab4d1064636067dcc"
MEMBER = "textblob_aptagger/trontagger-0.1.0.pickle"


class PlainUnpickler(pickle.Unpickler):
    """An unpickler of plain containers: the only class that a file may name is set."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return set; refuse everything else."""
        if global_name == "set":
            return set
        raise pickle.UnpicklingError(f"the file names {module_name}.{global_name}")


def pack(weights: dict[str, dict[str, float]], frequent: dict[str, str]) -> bytes:
    """Return the file: frequent words with their tag, an empty line, features with weights in eighths."""
    lines = [f"{word}\t{tag}" for word, tag in sorted(frequent.items())] + [""]
    for feature, row in sorted(weights.items()):
        kept = " ".join(f"{tag}:{round(8 * one)}" for tag, one in row.items() if abs(one) >= MIN_WEIGHT)
        if kept:
            lines.append(f"{feature}\t{kept}")
    return lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    """Read the wheel, check it, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    wheel: Path = parser.parse_args().wheel
    if sha256(wheel.read_bytes()).hexdigest() != WHEEL_SHA256:
        raise SystemExit(f"pack_tagger: {wheel} is not the wheel of textblob-aptagger 0.2.0")
    raw = zipfile.ZipFile(wheel).read(MEMBER)
    weights, frequent, _ = PlainUnpickler(io.BytesIO(raw), encoding="utf-8", errors="replace").load()
    WEIGHTS.write_bytes(pack(weights, frequent))
    print(f"{WEIGHTS.stat().st_size:,} bytes in {WEIGHTS}")


if __name__ == "__main__":
    main()
