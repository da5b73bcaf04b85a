"""`qkv decode` of a run of task masked: what could stand where [MASK] stands."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.tasks import Reader


def fill(reader: "Reader", texts: list[str], best: int, *, quiet: bool) -> list[dict[str, Any]]:
    """The best fillers of each mask of each text, printed as lines, or `quiet` and returned."""
    records: list[dict[str, Any]] = []
    for text, masks in zip(texts, reader.fill(texts, best), strict=True):
        answers = [[{"text": one.text, "probability": one.probability} for one in fillers] for fillers in masks]
        record = {"input": text, "filled": reader.filled(text, [fillers[0] for fillers in masks]), "masks": answers}
        records += [record] if quiet else _print(record)
    return records


def _print(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Text, number of the mask, filler, probability."""
    for number, fillers in enumerate(record["masks"], 1):
        for one in fillers:
            sys.stdout.write(f"{record['input']}\t{number}\t{one['text']}\t{one['probability']:.4f}\n")
    return []
