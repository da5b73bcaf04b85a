"""The task `copy`: the same symbols again, in the same order."""

from torch import Tensor

from qkv.tasks.base import register
from qkv.tasks.synthetic.repeat import RepeatTask


@register("copy")
class CopyTask(RepeatTask):
    """Copy a row of symbols: trained on short rows, tested on long ones."""

    def repeated(self, symbols: Tensor) -> Tensor:
        """Return the symbols as they are."""
        return symbols
