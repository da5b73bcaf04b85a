"""Packing: several documents in one row, with attention only inside each document.

    [a a a b b | c c c c c]   attention runs on   [a a a b b], [c c c c c]   and again on   [b b]

In causal attention no token sees a later one, so the first document of a row is already right. Only the later
documents are extracted, processed again alone and put back: few tokens, if documents are longer than rows. If
documents are short, so that most tokens would be processed twice, all documents are extracted and whole rows are
not processed at all. Documents of similar length form a group, padded at their ends, where no token attends. So
every mechanism and every position scheme gives the same result as for each document alone.

Many small calls leave a GPU idle. There, a mechanism that accepts any mask of pairs attends once over whole rows, and
`Packing.document_mask` separates the documents.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

MAX_WORK_RATIO = 1.25
"""Largest ratio of processed tokens to packed tokens; more padding makes fewer groups."""
MAX_REPEATED_FRACTION = 0.5
"""Largest fraction of tokens that is processed twice."""
MASK_DEVICE = "cuda"
"""Device type where one masked call beats several unmasked ones: launches cost the same, however small."""
MAX_MASKED_TIME = 2048
"""Longest rows that are masked; in longer rows, pairs of different documents dominate the time."""
MAX_MASKED_PAIRS = 2**27
"""Largest number of masked pairs: each layer keeps its mask until the backward, 256 MB in 16 bits."""


@dataclass(frozen=True)
class Packing:
    """Index tensors that extract the documents of packed rows into groups, and put them back."""

    positions: Int64[Tensor, "rows time"]
    """Position of each token in its document, from 0."""
    token_index: Int64[Tensor, " extracted"]
    """Flat indices of the extracted tokens."""
    slot_index: Int64[Tensor, " extracted"]
    """Index of each extracted token in the concatenation of all flattened groups."""
    groups: tuple[Int64[Tensor, "_ _"], ...]
    """Flat token indices of documents of similar length, (documents, longest) per group."""
    _cache: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Derived tensors; not a `cached_property`, whose lock in Python 3.11 torch.compile cannot trace."""

    def apply_per_document(self, mix: Callable[..., Tensor], *given: Tensor) -> Tensor:
        """Return mix(*given) for tensors (rows, time, ...), as if each document were its own row.

        `mix` must be causal: a token may depend on earlier tokens of its row, but on no later one.
        """
        # gather all groups at once: the backward of each gather is as large as all rows
        sizes = [group.numel() for group in self.groups]
        gathered = [x.flatten(0, 1).index_select(0, self._gather_index).split(sizes) for x in given]
        mixed = []
        with _without_cudnn_attention(given[0].device):
            for group, *inputs in zip(self.groups, *gathered, strict=True):
                documents = (x.unflatten(0, group.shape) for x in inputs)
                mixed.append(mix(*documents).flatten(0, 1))
        extracted = torch.cat(mixed).index_select(0, self.slot_index)
        if self.token_index.numel() == self.positions.numel():
            return extracted.unflatten(0, self.positions.shape)
        rows = mix(*given).flatten(0, 1).index_copy(0, self.token_index, extracted)
        return rows.unflatten(0, self.positions.shape)

    def part(self, start: int, end: int) -> "Packing":
        """Return the packing of the tokens from `start` to `end` of each row, for sequence parallel.

        A document may span several parts. So it holds only the positions of tokens in their documents.
        """
        none = self.token_index[:0]
        return Packing(self.positions[:, start:end].contiguous(), none, none, ())

    def require_whole_rows(self) -> None:
        """Raise if this is the packing of a part of each row, which does not know where its documents begin."""
        if len(self.groups) == 0:  # `not` would make a compiled graph depend on the sizes of groups
            raise ValueError(
                "packing is that of a part of each row; call parallelize_sequence(model, group) before, or use the "
                "packing of whole rows"
            )

    @property
    def document_mask(self) -> Bool[Tensor, "rows 1 time time"]:
        """True where a key is in the query's document and not after it; computed once for all layers."""
        if "document_mask" not in self._cache:
            index = torch.arange(self.positions.shape[1], device=self.positions.device)
            first = (index - self.positions)[:, :, None]  # start of the query's document
            self._cache["document_mask"] = ((index >= first) & (index <= index[:, None]))[:, None]
        return self._cache["document_mask"]

    @property
    def starts(self) -> Bool[Tensor, "rows time"]:
        """True at the first token of each document; computed once for all layers."""
        if "starts" not in self._cache:
            self._cache["starts"] = self.positions == 0
        return self._cache["starts"]

    def prefers_mask(self, heads: int = 1) -> bool:
        """Return whether to attend under `document_mask`, not per document, if `heads` heads have their own mask."""
        rows, time = self.positions.shape
        small = time <= MAX_MASKED_TIME and rows * heads * time**2 <= MAX_MASKED_PAIRS
        return self.positions.device.type == MASK_DEVICE and small

    @property
    def _gather_index(self) -> Tensor:
        """Flat token indices of all groups, concatenated; computed once for all layers."""
        if "gather_index" not in self._cache:
            self._cache["gather_index"] = torch.cat([group.flatten() for group in self.groups])
        return self._cache["gather_index"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, as `from_tensors` takes them."""
        return self.positions, self.token_index, self.slot_index, *self.groups

    @classmethod
    def from_tensors(cls, tensors: Sequence[Tensor]) -> "Packing | None":
        """Rebuild a packing from `tensors`; None for an empty sequence."""
        return cls(tensors[0], tensors[1], tensors[2], tuple(tensors[3:])) if tensors else None


def _without_cudnn_attention(device: torch.device) -> AbstractContextManager[object]:
    """Disable cuDNN's attention, which builds a plan for each new shape: here nearly every batch has one."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def pack_documents(starts: Bool[Tensor, "rows time"]) -> Packing | None:
    """Build the packing of documents that start where `starts` is True and at every row; None for one per row."""
    rows, time = starts.shape
    all_starts = starts.clone()
    all_starts[:, :1] = True
    firsts = all_starts.flatten().nonzero()[:, 0]
    if len(firsts) == rows:
        return None
    lengths = firsts.diff(append=firsts.new_tensor([rows * time]))
    positions = torch.arange(rows * time) - firsts.repeat_interleave(lengths)
    extracted = firsts % time > 0  # all but the first document of a row
    if int(lengths[extracted].sum()) > MAX_REPEATED_FRACTION * rows * time:
        extracted[:] = True
    token_index = extracted.repeat_interleave(lengths).nonzero()[:, 0]
    firsts, lengths = firsts[extracted], lengths[extracted]
    slots = torch.empty(rows * time, dtype=torch.long)
    groups, offset = [], 0
    for members in _group_by_length(lengths, (MAX_WORK_RATIO - 1) * rows * time):
        first, length = firsts[members], lengths[members]
        longest = int(length.max())
        # padded with the last token of each document
        group = first[:, None] + torch.arange(longest).minimum(length[:, None] - 1)
        real = torch.arange(longest) < length[:, None]
        slots[group[real]] = offset + real.flatten().nonzero()[:, 0]
        offset += group.numel()
        groups.append(group)
    return Packing(positions.view(rows, time), token_index, slots[token_index], tuple(groups))


def _group_by_length(lengths: Tensor, max_padding: float) -> list[Tensor]:
    """Group document indices by powers of two of their length, then merge while padding is at most `max_padding`."""
    classes = torch.log2(lengths.double()).ceil().long()
    groups = [(classes == power).nonzero()[:, 0] for power in classes.unique().tolist()]
    widths = [int(lengths[group].max()) for group in groups]
    padding = sum(len(group) * width for group, width in zip(groups, widths, strict=True)) - int(lengths.sum())
    while len(groups) > 1:
        added = [len(groups[i]) * (widths[i + 1] - widths[i]) for i in range(len(groups) - 1)]
        cheapest = min(range(len(added)), key=added.__getitem__)
        padding += added[cheapest]
        if padding > max_padding:
            break
        groups[cheapest : cheapest + 2] = [torch.cat(groups[cheapest : cheapest + 2])]
        del widths[cheapest]
    return groups
