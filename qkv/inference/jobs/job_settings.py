"""What decides the files of a job, and the sentence for a command that differs from the job in a folder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qkv.errors import unknown_name_error
from qkv.inference.jobs.part_file import FORMATS

MAX_PARTS = 1_000_000
"""Most parts of a job: their names have six digits."""


@dataclass(frozen=True)
class JobSettings:
    """What decides the files of a job, besides its input."""

    run: str
    """Checksum of the model and its vocabulary."""
    options: Mapping[str, Any]
    """Options of the prediction, by their names on the command line."""
    form: str = "tsv"
    """Format of the parts: tsv or jsonl."""
    part_lines: int = 10_000
    """Lines of the input that a part answers."""

    def __post_init__(self) -> None:
        if self.form not in FORMATS:
            raise unknown_name_error("format", self.form, FORMATS)
        if self.part_lines < 1:
            raise ValueError(f"part_lines must be at least 1, got {self.part_lines}")

    def to_record(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return asdict(self)

    def difference(self, record: Mapping[str, Any]) -> str | None:
        """Return how these settings differ from the record of a job, as a sentence; None: they are the same."""
        if record.get("run") != self.run:
            return "the job in this folder was started with another run, or its weights have changed since"
        own, other = self._choices(self.to_record()), self._choices(record)
        for name in sorted(own.keys() | other.keys()):
            if own.get(name) != other.get(name):
                before, now = _shown(name, other.get(name)), _shown(name, own.get(name))
                return f"the job in this folder was started with {before}, and this command has {now}"
        return None

    @staticmethod
    def _choices(record: Mapping[str, Any]) -> dict[str, Any]:
        options = record.get("options")
        chosen = options if isinstance(options, Mapping) else {}
        return {"format": record.get("form"), "part-lines": record.get("part_lines"), **chosen}


def _shown(name: str, value: object) -> str:
    return f"no --{name}" if value is None or value is False else f"--{name} {value}"
