"""Any attention kind, with the tokens of each sequence split over the processes of a group.

    parallel = SequenceParallel(Taylor(), SequenceGroup())
    out = parallel(q, k, v, causal=True)                    q, k, v: the tokens of this process

The outputs of all processes, one after the other, are those of one process for the whole sequence.
"""

from torch import nn

from qkv.attention.base import Attention, State
from qkv.attention.internal.validation import Modifiers
from qkv.attention.parallel.group import SequenceGroup
from qkv.attention.parallel.part import attend_part
from qkv.shapes import Beta, Bias, Decay, Keys, Mask, Outputs, Queries, Starts, StepBias, Values, Weights


class SequenceParallel(nn.Module):
    """Attention of one part of each sequence; the interface is that of `attention`."""

    def __init__(self, attention: Attention, group: SequenceGroup):
        super().__init__()
        self.attention = attention
        self.group = group

    def weights(self, q: Queries, k: Keys, **modifiers: object) -> Weights:
        """Raise: the matrix of a part needs the keys of all, which no process has."""
        raise ValueError("weights are not defined for a part of a sequence; call weights of the attention kind itself")

    def forward(
        self,
        q: Queries,
        k: Keys,
        v: Values,
        *,
        causal: bool = False,
        mask: Mask | None = None,
        bias: Bias | None = None,
        decay: Decay | None = None,
        beta: Beta | None = None,
        starts: Starts | None = None,
    ) -> Outputs:
        """Return the outputs of the tokens of this process.

        `bias` has an entry for every key from the first part to this one or, if not causal, of all parts.
        """
        given = {"mask": mask, "bias": bias, "decay": decay, "beta": beta, "starts": starts}
        part = self.group.locate(q.shape[2], q.device, **given)
        if part is None:
            alone: Outputs = self.attention(q, k, v, causal=causal, **given)
            return alone
        return attend_part(self.attention, part, q, k, v, Modifiers(causal, mask, bias, decay, beta, starts))[0]

    def start(self, *sizes: int, **options: object) -> State:
        """Return the state before the first token of the whole sequence, the same at every process."""
        return self.attention.start(*sizes, **options)  # type: ignore[arg-type]

    def step(
        self,
        q: Queries,
        k: Keys,
        v: Values,
        state: State,
        *,
        mask: Mask | None = None,
        bias: StepBias | None = None,
        decay: Decay | None = None,
        beta: Beta | None = None,
        starts: Starts | None = None,
    ) -> tuple[Outputs, State]:
        """Process the parts of all processes from a state that all of them hold.

        The new state is the one after the part of this process: at the last process, that of the whole sequence.
        """
        given = {"mask": mask, "bias": bias, "decay": decay, "beta": beta, "starts": starts}
        part = self.group.locate(q.shape[2], q.device, **given)
        if part is None:
            return self.attention.step(q, k, v, state, **given)
        return attend_part(self.attention, part, q, k, v, Modifiers(True, mask, bias, decay, beta, starts), state)
