"""Several documents in one row, none of which sees another.

    [a a a b b | c c c c c]   attention runs on   [a a a b b], [c c c c c]   and again on   [b b]

In a causal attention nothing sees what comes after it, so the first document of a row is right where it stands. Only
what follows it is taken out, worked on once more by itself, and put back: few tokens, where documents are longer than
rows. Where they are short, so that most tokens would be worked on twice, all documents are taken out, and rows are not
worked on at all. Those of about one length go together, filled up at their ends, where nothing looks. So every
mechanism and every position scheme does what it would do for each document alone.

A GPU is kept waiting by so many small pieces. There a mechanism that takes any mask of pairs attends once over whole
rows, and the mask keeps documents apart: `Packing.seen`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

SPARE = 1.25
"""How much more than the packed rows may be worked on for the sake of fewer groups."""
TWICE = 0.5
"""The largest part of all tokens that is worked on twice."""
MASKED_ON = "cuda"
"""Where one masked call is faster than several without a mask: each costs a GPU's host the same, however small."""
MASKED_TIME = 2048
"""The longest rows that are masked: in longer ones it is the pairs of different documents that cost time."""
MASKED_PAIRS = 2**27
"""The most pairs that are masked: each layer keeps its mask until the backward pass, 256 MB of them in 16 bits."""


@dataclass(frozen=True)
class Packing:
    """Which tokens of packed rows are taken out, where they stand then, and back."""

    places: Int64[Tensor, "rows time"]
    """Of each token in its document, from 0."""
    moved: Int64[Tensor, " moved"]
    """The tokens that are taken out, numbered over all rows."""
    home: Int64[Tensor, " moved"]
    """Of each of them, its place among those of all groups, laid end to end."""
    groups: tuple[Int64[Tensor, "_ _"], ...]
    """Documents of about one length each, (documents, longest): the number of every token."""
    _made: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was made of it once; a `cached_property` has a lock in Python 3.11, which torch.compile cannot follow."""

    def by_document(self, mix: Callable[..., Tensor], *given: Tensor) -> Tensor:
        """mix(*given), for tensors (rows, time, ...), as if each document were a row of its own.

        `mix` may let a token see those before it in its row, but none after it.
        """
        # all groups at once: the backward pass of each reading is as long as all rows are
        sizes = [group.numel() for group in self.groups]
        taken = [x.flatten(0, 1).index_select(0, self._read).split(sizes) for x in given]
        with _unplanned(given[0].device):
            parts = [
                mix(*(part.unflatten(0, group.shape) for part in of_group)).flatten(0, 1)
                for group, *of_group in zip(self.groups, *taken, strict=True)
            ]
        alone = torch.cat(parts).index_select(0, self.home)
        if self.moved.numel() == self.places.numel():
            return alone.unflatten(0, self.places.shape)
        return mix(*given).flatten(0, 1).index_copy(0, self.moved, alone).unflatten(0, self.places.shape)

    @property
    def seen(self) -> Bool[Tensor, "rows 1 time time"]:
        """True where a key is of the query's document and not after it; made once for all layers that ask."""
        if "seen" not in self._made:
            place = torch.arange(self.places.shape[1], device=self.places.device)
            first = (place - self.places)[:, :, None]  # of the query's document, in its row
            self._made["seen"] = ((place >= first) & (place <= place[:, None]))[:, None]
        return self._made["seen"]

    def fits_mask(self, heads: int = 1) -> bool:
        """Whether to attend by `seen`, and not by document; `heads`: how many have a mask of their own."""
        rows, time = self.places.shape
        few = time <= MASKED_TIME and rows * heads * time**2 <= MASKED_PAIRS
        return self.places.device.type == MASKED_ON and few

    @property
    def _read(self) -> Tensor:
        """The tokens of all groups, end to end; every layer of a model asks for them."""
        if "read" not in self._made:
            self._made["read"] = torch.cat([group.flatten() for group in self.groups])
        return self._made["read"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of it, to be sent somewhere."""
        return self.places, self.moved, self.home, *self.groups

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Packing | None":
        """What `tensors` gave; nothing for nothing."""
        return cls(tensors[0], tensors[1], tensors[2], tuple(tensors[3:])) if tensors else None


def _unplanned(device: torch.device) -> AbstractContextManager[object]:
    """Without cuDNN's attention, which makes a plan for each new shape: no two batches have one."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def pack_documents(starts: Bool[Tensor, "rows time"]) -> Packing | None:
    """For documents that start where `starts` is True, and with every row; None where each row is one document."""
    rows, time = starts.shape
    begins = starts.clone()
    begins[:, :1] = True
    firsts = begins.flatten().nonzero()[:, 0]
    if len(firsts) == rows:
        return None
    lengths = firsts.diff(append=firsts.new_tensor([rows * time]))
    places = torch.arange(rows * time) - firsts.repeat_interleave(lengths)
    later = firsts % time > 0
    if int(lengths[later].sum()) > TWICE * rows * time:
        later[:] = True
    moved = later.repeat_interleave(lengths).nonzero()[:, 0]
    firsts, lengths = firsts[later], lengths[later]
    home = torch.empty(rows * time, dtype=torch.long)
    groups, before = [], 0
    for members in _alike(lengths, (SPARE - 1) * rows * time):
        first, length = firsts[members], lengths[members]
        longest = int(length.max())
        # filled up with a document's own last token
        group = first[:, None] + torch.arange(longest).minimum(length[:, None] - 1)
        real = torch.arange(longest) < length[:, None]
        home[group[real]] = before + real.flatten().nonzero()[:, 0]
        before += group.numel()
        groups.append(group)
    return Packing(places.view(rows, time), moved, home[moved], tuple(groups))


def _alike(lengths: Tensor, spare: float) -> list[Tensor]:
    """The numbers of the documents in groups: by powers of two, then joined while at most `spare` is filled up."""
    classes = torch.log2(lengths.double()).ceil().long()
    groups = [(classes == number).nonzero()[:, 0] for number in classes.unique().tolist()]
    widths = [int(lengths[group].max()) for group in groups]
    wasted = sum(len(group) * width for group, width in zip(groups, widths, strict=True)) - int(lengths.sum())
    while len(groups) > 1:
        added = [len(groups[i]) * (widths[i + 1] - widths[i]) for i in range(len(groups) - 1)]
        place = min(range(len(added)), key=added.__getitem__)
        wasted += added[place]
        if wasted > spare:
            break
        groups[place : place + 2] = [torch.cat(groups[place : place + 2])]
        del widths[place]
    return groups
