"""Several documents in one row, none of which sees another.

    [a a a b b | c c c c c]   attention runs on   [a a a .], [b b . .], [c c c c c]   and all else on the packed rows

Documents of about one length are attended to together, filled up at their ends, where in a causal attention nothing
before them can look. So every mechanism and every position scheme does what it would do for each document alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

SPARE = 1.25
"""How much longer unpacked rows, all together, may be made than packed ones, so that there are fewer groups."""


@dataclass(frozen=True)
class Packing:
    """Where each token of packed rows stands among unpacked ones, and back."""

    places: Int64[Tensor, "rows time"]
    """Of each token in its document, from 0."""
    home: Int64[Tensor, "rows time"]
    """Of each token among those of all unpacked rows, laid end to end."""
    groups: tuple[Int64[Tensor, "_ _"], ...]
    """Documents of about one length each, (documents, longest): the number of every token over all packed rows."""

    def unpack(self, x: Tensor) -> list[Tensor]:
        """(rows, time, ...) as documents: a (documents, longest, ...) for each group."""
        flat = x.flatten(0, 1)
        return [flat[group] for group in self.groups]

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """What `unpack` gave, or something of the same first axes, as packed rows again."""
        return torch.cat([part.flatten(0, 1) for part in parts])[self.home]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of it, to be sent somewhere."""
        return self.places, self.home, *self.groups

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Packing | None":
        """What `tensors` gave; nothing for nothing."""
        return cls(tensors[0], tensors[1], tuple(tensors[2:])) if tensors else None


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
    home = torch.empty_like(places)
    groups, before = [], 0
    for members in _alike(lengths):
        first, length = firsts[members], lengths[members]
        longest = int(length.max())
        # filled up with a document's own last token
        group = first[:, None] + torch.arange(longest).minimum(length[:, None] - 1)
        real = torch.arange(longest) < length[:, None]
        home[group[real]] = before + real.flatten().nonzero()[:, 0]
        before += group.numel()
        groups.append(group)
    return Packing(places.view(rows, time), home.view(rows, time), tuple(groups))


def _alike(lengths: Tensor) -> list[Tensor]:
    """The numbers of the documents in groups: by powers of two first, then joined while little is wasted."""
    classes = torch.log2(lengths.double()).ceil().long()
    groups = [(classes == number).nonzero()[:, 0] for number in classes.unique().tolist()]
    widths = [int(lengths[group].max()) for group in groups]
    wasted = sum(len(group) * width for group, width in zip(groups, widths, strict=True)) - int(lengths.sum())
    while len(groups) > 1:
        added = [len(groups[i]) * (widths[i + 1] - widths[i]) for i in range(len(groups) - 1)]
        place = min(range(len(added)), key=added.__getitem__)
        wasted += added[place]
        if wasted > (SPARE - 1) * int(lengths.sum()):
            break
        groups[place : place + 2] = [torch.cat(groups[place : place + 2])]
        del widths[place]
    return groups
