"""`qkv decode` of a run of task masked: what could stand where [MASK] stands."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from qkv.cli.shared.warnings import Complaints

if TYPE_CHECKING:
    from qkv.inference import Reader


def fill(reader: "Reader", chunks: Iterable[list[str]], best: int, *, quiet: bool) -> list[dict[str, Any]]:
    """The best fillers of each mask of each text, printed as lines, or `quiet` and returned.

    A text that cannot be filled in stops no other: it is told on stderr, or its record has an `error`.
    """
    records: list[dict[str, Any]] = []
    complaints = Complaints()
    for chunk in chunks:
        for record in _fill(reader, chunk, best):
            if quiet:
                records.append(record)
            elif record["error"] is not None:
                complaints.tell(record["error"])
            else:
                _print(record)
    complaints.finish("texts")
    return records


def _fill(reader: "Reader", texts: list[str], best: int) -> list[dict[str, Any]]:
    """A record for each text, in order."""
    obstacles = [reader.obstacle(text) for text in texts]
    whole = [text for text, obstacle in zip(texts, obstacles, strict=True) if obstacle is None]
    found = iter(reader.fill(whole, best))
    records = []
    for text, obstacle in zip(texts, obstacles, strict=True):
        masks = [] if obstacle is not None else next(found)
        filled = None if obstacle is not None else reader.filled(text, [fillers[0] for fillers in masks])
        answers = [[{"text": one.text, "probability": one.probability} for one in fillers] for fillers in masks]
        records.append({"input": text, "filled": filled, "masks": answers, "error": obstacle})
    return records


def _print(record: dict[str, Any]) -> None:
    """Text, number of the mask, filler, probability."""
    for number, fillers in enumerate(record["masks"], 1):
        for one in fillers:
            sys.stdout.write(f"{record['input']}\t{number}\t{one['text']}\t{one['probability']:.4f}\n")
