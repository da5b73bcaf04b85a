"""What the time of an operation on a CPU is made of: its sort, and how much there is of each of the sort's terms.

    seconds = sum over terms of amount * seconds each

A matrix product pays for starting, for its multiplications, and for every number of its sides and of its result; this
is why small ones are slow. What only moves through memory pays for bytes, at a rate that depends on how many they are.
"""

from qkv.cost.aten import FREE
from qkv.cost.counter import Operation

_MOVED = ("start", "multiplications", "numbers")
TERMS: dict[str, tuple[str, ...]] = {
    "product": ("start", "multiplications", "left", "right", "result"),
    "batched product": ("start", "copies", "multiplications", "narrow", "left", "right", "result"),
    "attention": ("start", "copies", "multiplications", "pairs", "narrow", "queries", "keys"),
    "convolution": _MOVED,
    "pointwise convolution": _MOVED,
    "grouped convolution": _MOVED,
    "recurrent layer": ("start", "steps", "multiplications", "weights", "gates"),
    "pooling": ("start", "visits"),
}
"""Sort of operation -> the terms of its time; "narrow" is the work of too few columns for a vector."""
_VECTOR = 16  # numbers, of a processor of today
_MOVING = {
    "light": "",
    "copy": "clone copy cat stack _to_copy contiguous constant_pad_nd repeat",
    "sigmoid": "sigmoid silu gelu hardswish mish",
    "exp": "exp elu celu selu softplus exp2 expm1 log log2 log1p log_sigmoid_forward sin cos pow erf",
    "tanh": "tanh",
    "softmax": "_softmax _safe_softmax _log_softmax logsumexp",
    "norm": "native_layer_norm native_group_norm _fused_rms_norm",
    "reduce": "sum mean amax amin linalg_vector_norm",
    "search": "max min argmax argmin topk sort cumsum var var_mean std",
    "mask": "masked_fill where",
    "triangle": "tril triu eq ne lt le gt ge",
    "gather": "embedding index_select gather index",
}
"""Sort of operation -> its operations; those in no sort are "light"."""
MOVING = tuple(_MOVING)
_SORT = {name: sort for sort, names in _MOVING.items() for name in names.split()}


def sort_of(operation: Operation) -> str:
    """The sort whose rates it is forecast by: one of `TERMS`, one of `MOVING`, "view" or "start"."""
    name = operation.name
    if name == "view":
        return "view"
    if operation.product:
        return _product_sort(operation)
    if operation.window > 1:
        return "pooling"
    return "start" if name in FREE and name not in _SORT else _SORT.get(name, "light")


def _product_sort(operation: Operation) -> str:
    copies = operation.product[3]
    if operation.name == "convolution":
        if copies > 1:
            return "grouped convolution"
        return "convolution" if operation.window > 1 else "pointwise convolution"
    if "rnn" in operation.name:
        return "recurrent layer"
    if "attention" in operation.name:
        return "attention"
    return "batched product" if copies > 1 else "product"


def amounts(operation: Operation) -> dict[str, float]:
    """How much there is of each term of its sort, which is one of `TERMS`."""
    sort = sort_of(operation)
    if sort == "pooling":
        found: dict[str, float] = {"visits": operation.elements * operation.window}
    else:
        rows, shared, columns, copies = operation.product
        found = {"copies": copies, "multiplications": operation.multiplications, "numbers": operation.bytes / 4}
        found |= {name: copies * size for name, size in _sides(sort, rows, shared, columns).items()}
        if sort == "recurrent layer":
            found |= {"steps": copies, "weights": operation.multiplications / rows, "gates": copies * rows * columns}
    return {name: found.get(name, 1.0) for name in TERMS[sort]}


def _sides(sort: str, rows: int, shared: int, columns: int) -> dict[str, float]:
    """Numbers in one copy of each side."""
    if sort == "attention":
        pairs = rows * columns
        narrow = pairs if shared < _VECTOR else 0
        sides = {"pairs": pairs, "narrow": narrow, "queries": rows, "keys": columns * shared}
        return {"multiplications": 2 * pairs * shared, **sides}
    narrow = rows * shared * columns if columns < _VECTOR else 0
    return {"narrow": narrow, "left": rows * shared, "right": shared * columns, "result": rows * columns}
