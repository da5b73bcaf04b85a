"""The terms of an operation's time on a CPU: its category, and how much of each term of that category it has.

    seconds = sum over terms of amount * seconds per unit

A matrix product pays a fixed start, its multiplications, and every element of its operands and result; that is why
small products are slow. A memory-bound operation pays per byte, at a rate that depends on the number of bytes.
"""

from qkv.cost.aten import FREE
from qkv.cost.counter import Operation

_CONVOLUTION_TERMS = ("start", "multiplications", "elements")
TERMS: dict[str, tuple[str, ...]] = {
    "product": ("start", "multiplications", "left", "right", "result"),
    "batched product": ("start", "copies", "multiplications", "narrow", "left", "right", "result"),
    "attention": ("start", "copies", "multiplications", "pairs", "narrow", "queries", "keys"),
    "convolution": _CONVOLUTION_TERMS,
    "pointwise convolution": _CONVOLUTION_TERMS,
    "grouped convolution": _CONVOLUTION_TERMS,
    "recurrent layer": ("start", "steps", "multiplications", "weights", "gates"),
    "pooling": ("start", "visits"),
}
"""Operation category -> terms of its time; "narrow" is work on fewer columns than a vector register holds."""
_VECTOR_WIDTH = 16  # float32 elements of a vector register
_MEMORY_BOUND_OPS = {
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
"""Operation category -> its operations; an operation in no category is "light"."""
MEMORY_BOUND = tuple(_MEMORY_BOUND_OPS)
_CATEGORY = {name: category for category, names in _MEMORY_BOUND_OPS.items() for name in names.split()}


def op_category(operation: Operation) -> str:
    """Return the category whose rates apply: one of `TERMS`, one of `MEMORY_BOUND`, "view" or "start"."""
    name = operation.name
    if name == "view":
        return "view"
    if operation.matmul_shape:
        return _matmul_category(operation)
    if operation.window > 1:
        return "pooling"
    if name in FREE and name not in _CATEGORY:
        return "start"
    return _CATEGORY.get(name, "light")


def _matmul_category(operation: Operation) -> str:
    copies = operation.matmul_shape[3]
    if operation.name == "convolution":
        if copies > 1:
            return "grouped convolution"
        return "convolution" if operation.window > 1 else "pointwise convolution"
    if "rnn" in operation.name:
        return "recurrent layer"
    if "attention" in operation.name:
        return "attention"
    return "batched product" if copies > 1 else "product"


def term_amounts(operation: Operation) -> dict[str, float]:
    """Return the amount of each term of an operation whose category is one of `TERMS`."""
    category = op_category(operation)
    if category == "pooling":
        found: dict[str, float] = {"visits": operation.elements * operation.window}
    else:
        rows, shared, columns, copies = operation.matmul_shape
        found = {"copies": copies, "multiplications": operation.multiplications, "elements": operation.bytes / 4}
        found |= {name: copies * size for name, size in _sides(category, rows, shared, columns).items()}
        if category == "recurrent layer":
            found |= {"steps": copies, "weights": operation.multiplications / rows, "gates": copies * rows * columns}
    return {name: found.get(name, 1.0) for name in TERMS[category]}


def _sides(category: str, rows: int, shared: int, columns: int) -> dict[str, float]:
    """Return the elements in one copy of each operand and of the result."""
    if category == "attention":
        pairs = rows * columns
        narrow = pairs if shared < _VECTOR_WIDTH else 0
        sides = {"pairs": pairs, "narrow": narrow, "queries": rows, "keys": columns * shared}
        return {"multiplications": 2 * pairs * shared, **sides}
    narrow = rows * shared * columns if columns < _VECTOR_WIDTH else 0
    return {"narrow": narrow, "left": rows * shared, "right": shared * columns, "result": rows * columns}
