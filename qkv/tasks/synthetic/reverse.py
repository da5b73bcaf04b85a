"""The task `reverse`: the same symbols again, the last one first."""

from torch import Tensor

from qkv.tasks.base import register
from qkv.tasks.synthetic.repeat import RepeatTask


@register("reverse")
class ReverseTask(RepeatTask):
    """Reverse a row of symbols: trained on short rows, tested on long ones."""

    def repeated(self, symbols: Tensor) -> Tensor:
        """Return the symbols from the last to the first."""
        return symbols.flip(1)
