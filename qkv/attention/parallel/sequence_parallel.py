"""Any attention kind, with the tokens of each sequence split over the processes of a group.

    parallel = SequenceParallel(Taylor(), SequenceGroup())
    out = parallel(q, k, v, causal=True)                    q, k, v: the tokens of this process

The outputs of all processes, one after the other, are those of one process for the whole sequence.
"""

from dataclasses import replace

from torch import nn

from qkv.attention.base import Attention, State
from qkv.attention.internal.validation import Modifiers
from qkv.attention.parallel.group import SequenceGroup
from qkv.attention.parallel.part import attend_part, exchanged_bytes
from qkv.attention.parallel.summary import SummaryOptions
from qkv.cost import Cost, Shape
from qkv.shapes import Beta, Bias, Decay, Keys, Mask, Outputs, Queries, Starts, StepBias, Values, Weights

_PLAIN = SummaryOptions()


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

    def cost(self, shape: Shape) -> Cost:
        """Return the cost at this process, beside the `exchanged_bytes`.

        `shape.queries` are its tokens; `shape.keys` are those and all before them or, if not causal, all.
        """
        if self.group.parts == 1:
            return self.attention.cost(shape)
        past = self.attention.past_keys(shape.keys - shape.queries)
        earlier = self.group.rank if shape.causal else self.group.parts
        return self.attention.part_cost(replace(shape, keys=shape.queries + past), earlier)

    def exchanged_bytes(self, shape: Shape, parts: int | None = None, options: SummaryOptions = _PLAIN) -> int:
        """Return the bytes that a process receives in one forward, (parts - 1) * (bytes of a summary + 16).

        `shape.keys` are the tokens of the longest part; `parts` is the number of processes (default: of the group).
        """
        return exchanged_bytes(self.attention, shape, self.group.parts if parts is None else parts, options)
