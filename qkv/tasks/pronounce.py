"""The task `pronounce`: from the letters of an English word to its phones, trained on CMUdict."""

from qkv.data import Pair, cmudict
from qkv.tasks.base import register
from qkv.tasks.pairs import Seq2SeqTask
from qkv.tasks.seq2seq_files import Seq2SeqOptions, exclude_words, read_splits


@register("pronounce")
class PronounceTask(Seq2SeqTask):
    """Pronounce English words: CMUdict 1.1.3 with stress, or files of your own."""

    example = "attention"

    @classmethod
    def read_pairs(cls, given: Seq2SeqOptions) -> tuple[dict[str, list[Pair]], tuple[str, ...]]:
        """Read CMUdict with its fixed splits, unless a training file is given.

        `exclude="standard"` keeps the words of the standard test list out of training too, so that a released model can
        be measured on them.
        """
        if given.train_file is not None:
            return read_splits(given)
        splits = cmudict()
        kept = {name: exclude_words(splits[name], given.exclude) for name in ("train", "valid")}
        return {**splits, **kept}, ()
