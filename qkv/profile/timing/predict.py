"""What a call will take on a machine of known rates: sort by sort, from the operations that it runs."""

from collections.abc import Callable, Sequence

from qkv.cost.counter import Operation, count_multiplications
from qkv.profile.timing.op_terms import sort_of
from qkv.profile.timing.python_overhead import Calls, python_calls
from qkv.profile.timing.rates import Rates


def foresee(call: Callable[[], object], known: Rates) -> dict[str, float]:
    """Sort of operation -> seconds that all of that sort will take; it is run, but not timed."""
    with count_multiplications(strict=False, trace=True) as counting:
        call()
    return predict(counting.trace or [], known, python_calls(call))


def predict(trace: Sequence[Operation], known: Rates, calls: Calls | None = None) -> dict[str, float]:
    """Sort of operation -> seconds, most first; "python" is the program that calls them.

    It pays for each of its calls, and once more for an operation; not for those that another operation calls.
    """
    parts = {}
    if calls is not None:
        called = min(len(trace), calls.compiled)
        parts["python"] = (calls.python + calls.compiled) * known.call + called * known.binding
    for operation in trace:
        sort = sort_of(operation)
        parts[sort] = parts.get(sort, 0.0) + known.seconds(operation)
    return dict(sorted(parts.items(), key=lambda part: -part[1]))
