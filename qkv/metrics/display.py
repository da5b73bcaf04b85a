"""How metrics are shown to people: title, value with its unit, meaning. Tables and report pages use the same."""

import math
import re

_PERCENT = ("_rate", "accuracy", "chance")
"""Ends of the names of metrics that are shares of something, shown in percent."""
_TIMES = ("_ms", "ms_per_picture")
_LARGE = 1e6
_CONDITION = re.compile(r"([a-z]+_\d+(?:_[a-z]+_\d+)*)_accuracy")
"""Accuracy under one condition of a test, such as length_256_depth_50_accuracy."""

_MEANINGS = {
    "examples": "examples evaluated",
    "tokens": "tokens evaluated",
    "words": "words of the text; of the vocabulary for word vectors",
    "masked_tokens": "masked tokens evaluated",
    "sequence_error_rate": "outputs with at least one wrong token; lower is better",
    "token_error_rate": "inserted, deleted and substituted tokens per reference token; lower is better",
    "jaccard": "similarity of the sets of tokens, ignoring order; 1: equal",
    "cosine": "similarity of the token counts, ignoring order; 1: equal",
    "damerau_levenshtein": "1 - edits / length of the longer; an edit may swap two neighbors; 1: equal",
    "accuracy": "right answers; higher is better",
    "scaled_accuracy": "(accuracy - chance) / (1 - chance); 0: guessing, 1: always right",
    "row_accuracy": "rows without any wrong answer",
    "chance": "accuracy of the best constant guess",
    "loss": "mean of -ln(probability of the right answer), in nats; lower is better",
    "own_loss": "mean of the model's own loss, which is not a cross entropy; lower is better",
    "perplexity": "exp(loss): as uncertain as between this many equally likely tokens; lower is better",
    "word_perplexity": "perplexity per word, comparable between tokenizers; lower is better",
    "bits_per_byte": "loss in bits per byte of text; lower is better",
    "masked_accuracy": "masked tokens predicted right; higher is better",
    "masked_loss": "mean of -ln(probability of the masked token), in nats; lower is better",
    "unigram_accuracy": "baseline: always guess the most frequent token",
    "unigram_loss": "baseline: predict each token by its share in the training text",
    "ap50": "average precision of boxes with IoU >= 0.5, mean over classes (COCO); higher is better",
    "mean_ap": "average precision, mean over IoU 0.50 to 0.95 and classes (COCO mAP); higher is better",
    "ap75": "average precision of boxes with IoU >= 0.75; higher is better",
    "ar100": "recall with at most 100 boxes per picture, mean over IoU 0.50 to 0.95; higher is better",
    "proposals": "regions per picture that are classified",
    "proposal_recall_50": "objects with a proposal of IoU >= 0.5: the ceiling of recall",
    "proposal_recall_70": "objects with a proposal of IoU >= 0.7",
    "true_box_accuracy": "right classes if the true boxes are given: the ceiling of the classifier",
    "ms_per_picture": "milliseconds per picture, one at a time, proposals included; lower is better",
    "proposals_ms": "of these, to propose regions",
    "backbone_ms": "of these, in the backbone",
    "regions_ms": "of these, to classify regions",
    "nms_ms": "of these, to select the final boxes",
    "stages": "trainings, one after the other",
    "pictures": "pictures evaluated",
    "next_sentence_accuracy": "pairs classified right as in order or not; chance is 50%",
}


def metric_title(name: str) -> str:
    """Return the name in words: token_error_rate -> token error rate."""
    return name.replace("_", " ")


def metric_meaning(name: str) -> str:
    """Return one line about a metric; empty: not known."""
    condition = _CONDITION.fullmatch(name)
    return f"accuracy at {metric_title(condition[1])}" if condition else _MEANINGS.get(name, "")


def is_percentage(name: str) -> bool:
    """Return whether a metric is a share, which is shown in percent."""
    return name.endswith(_PERCENT)


def format_metric(name: str, value: float | None) -> str:
    """Return a value for people: counts in groups of three digits, shares in percent, the rest with four decimals."""
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if is_percentage(name):
        return f"{value:.2%}"
    if name.endswith(_TIMES):
        return f"{value:,.1f}"
    return f"{value:,.4f}" if abs(value) < _LARGE else f"{value:.4g}"
