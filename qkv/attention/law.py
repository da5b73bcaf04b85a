r"""A kind's formula as data, for programs that print it.

Formulas are a small part of LaTeX: letters, digits, operators, `_{}`, `^{}`, `\frac{}{}`, `\exp`, `\tanh`, `\phi`,
`\cdot` and `\dots`. The letters s, q and k are the score, the query and the key of one pair.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Law:
    """Formula that turns a score, or a query and a key, into the unnormalized weight of a pair."""

    name: str
    """Short name of the formula, such as "exp"."""
    formula: str
    """The unnormalized weight, such as r"\\exp(s)"."""
    weight_note: str
    """Sentence that explains how the weight is computed."""
    score: str | None = r"q \cdot k"
    """The score before it is scaled; None if the kind has no score."""
    vector_note: str = ""
    """Sentence about the vectors that are multiplied, if they are not the queries and keys themselves."""
    product_note: str = "Query times key, dimension by dimension. The sum over a row is q · k."
    """Sentence that explains the products whose sum is the score."""
    exponential: bool = False
    """Whether the weight is exp of the score: the largest score is then subtracted first."""
    taylor_order: int | None = None
    """Order of the Taylor polynomial that replaces exp; None for other laws."""
    decay_note: str = ""
    """Sentence about a decay that acts inside the formula; empty if it is a factor of the weight."""


FEATURES = Law(
    "features",
    r"\phi(q) \cdot \phi(k)",
    "This kind has no exp: the dot product of the features is the unnormalized weight.",
    r"\phi(q) \cdot \phi(k)",
    "This kind compares features of the query and of the keys.",
    "Features of the query times features of the key. The sum over a row is their dot product.",
)


@dataclass(frozen=True)
class ScoreTerms:
    """The scores of one query, term by term: score_j = scale * sum over d of products_jd."""

    query: Tensor
    """(dims,): q, or the vector that replaces it."""
    keys: Tensor
    """(keys, dims): k, or the vectors that replace it."""
    products: Tensor
    """(keys, dims)"""
    scale: float
