"""The task `pronounce`: from the letters of an English word to its phones, trained on CMUdict."""

from typing import Any

from qkv.data import cmudict
from qkv.tasks.base import register
from qkv.tasks.options import read_options
from qkv.tasks.pairs import Seq2SeqTask
from qkv.tasks.seq2seq import Seq2SeqData
from qkv.tasks.seq2seq_files import Seq2SeqOptions, exclude_words, read_splits


@register("pronounce")
class PronounceTask(Seq2SeqTask):
    """Pronounce English words: CMUdict 1.1.3 with stress, or files of your own."""

    example = "attention"

    @classmethod
    def load(cls, options: dict[str, Any]) -> "PronounceTask":
        """Read CMUdict with its fixed splits, unless a training file is given.

        `exclude="standard"` keeps the words of the standard test list out of training too, so that a released model can
        be measured on them.
        """
        given = read_options(Seq2SeqOptions, options)
        if given.train_file is None:
            splits = cmudict()
            kept = {name: exclude_words(splits[name], given.exclude) for name in ("train", "valid")}
            return cls(Seq2SeqData.build({**splits, **kept}), given)
        data, bad_lines = read_splits(given)
        return cls(data, given, bad_lines)
