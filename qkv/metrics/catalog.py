"""Table of the metrics, by name.

for name, description in metrics.items():
    print(name, description)
"""

from collections.abc import Callable
from typing import Any

from qkv.metrics.bias_variance import bias_variance
from qkv.metrics.classification import accuracy, confusion_matrix
from qkv.metrics.error_rate import edit_distance, error_rates
from qkv.metrics.perplexity import Perplexity
from qkv.metrics.rank_correlation import spearman
from qkv.metrics.ranking import average_precision, precision_recall
from qkv.metrics.separability import separating_hyperplane
from qkv.metrics.similarity import cosine, damerau_levenshtein, jaccard

_METRICS: tuple[Callable[..., Any], ...] = (
    accuracy,
    average_precision,
    bias_variance,
    confusion_matrix,
    cosine,
    damerau_levenshtein,
    edit_distance,
    error_rates,
    jaccard,
    Perplexity,
    precision_recall,
    separating_hyperplane,
    spearman,
)

metrics: dict[str, str] = {metric.__name__: (metric.__doc__ or "").partition("\n")[0] for metric in _METRICS}
"""Name of a function or class of `qkv.metrics` -> first line of its docstring."""
