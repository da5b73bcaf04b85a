"""A draft without a model: what followed the last time the same few tokens occurred.

    ids  ... the cat sat on the mat . the cat          proposed: sat on the mat

It costs nothing, and serves where a text repeats its prompt: summaries, edits, code.
"""

from collections.abc import Sequence

from qkv.inference.speculative.draft import Draft, Pick, Proposal


class PromptNgramDraft(Draft):
    """Proposes what followed the latest occurrence of the last `n` tokens, or else of the last n - 1, ..., 1."""

    def __init__(self, n: int = 3):
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        self.n = n
        self._ids: list[int] = []
        self._following: dict[tuple[int, ...], int] = {}  # n-gram -> place of the token after its latest occurrence

    def propose(self, ids: Sequence[int], count: int, pick: Pick) -> Proposal:
        """Return the tokens after the latest occurrence of the longest suffix that occurred before."""
        self._read(list(ids))
        for size in range(min(self.n, len(ids)), 0, -1):
            place = self._following.get(tuple(self._ids[-size:]))
            if place is not None:
                text = list(self._ids)
                for offset in range(count):  # may run into what it proposes: then the text is periodic
                    text.append(text[place + offset])
                return Proposal(text[len(ids) :], [None] * count)
        return Proposal()

    def _read(self, ids: list[int]) -> None:
        """Index the n-grams of the tokens that are new."""
        if ids[: len(self._ids)] != self._ids:
            self._ids, self._following = [], {}
        for place in range(max(len(self._ids), 1), len(ids)):
            for size in range(1, min(self.n, place) + 1):
                self._following[tuple(ids[place - size : place])] = place
        self._ids = ids
