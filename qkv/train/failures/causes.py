"""The sentence of an error that ends a training."""

import torch.distributed as dist

from qkv.errors import QkvError

MAX_CHARACTERS = 500
CONTINUE = "--resume continues from the last checkpoint"
EXPECTED = (QkvError, ValueError, TypeError, OSError)
"""Errors whose text is a sentence without their type."""


def is_lost_connection(error: BaseException) -> bool:
    """Return whether this is the error of a connection to a process that has ended."""
    return isinstance(error, RuntimeError) and (isinstance(error, dist.DistError) or "gloo" in str(error))


def describe_cause(error: BaseException) -> str:
    """Return what went wrong in one line, for the other processes to quote."""
    text = " ".join(str(error).strip().split("\n")[:1])[:MAX_CHARACTERS]
    if isinstance(error, EXPECTED) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def out_of_memory_error(error: BaseException, where: str = "") -> QkvError:
    """Return the error of a training that needs more memory than there is, with what needs less."""
    text = ". ".join(str(error).strip().split("\n")[0].split(". ")[:2])
    reason = text.rpartition("can't allocate memory: ")[2] or type(error).__name__
    return QkvError(
        f"not enough memory{where} ({reason}); a new run needs less with a smaller train.batch_size, more "
        "train.accumulation_steps, or train.recompute=true"
    )
