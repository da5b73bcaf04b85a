"""The cost of every torch operation: a formula, elementwise work by class, or nothing. All others are unknown.

Names are those of torch's ATen operations, without the overload and without the trailing underscore of
an in-place form. A *formula* gives the multiplications of a matrix product or a convolution. An *op class*
collects elementwise work: a fixed count per element of the result (of the input, for reductions).
*Free* operations move, view, select or create values and compute nothing.
"""

from collections.abc import Callable
from math import prod
from typing import Any

Formula = Callable[[tuple[Any, ...], Any], int]
"""(arguments, result) -> multiplications."""
ElementCounts = dict[str, int]
"""Op class -> operations per element."""


def _rows(x: Any) -> int:
    return prod(x.shape[:-1])


def _product(left: Any, right: Any) -> int:
    """Multiply (..., rows, shared) by (..., shared, columns)."""
    return left.numel() * right.shape[-1]


def _convolution(x: Any, weight: Any, out: Any, transposed: bool) -> int:
    """Multiply each output (each input, if transposed) by a whole filter."""
    return (x if transposed else out).numel() * prod(weight.shape[1:])


def _convolution_backward(arguments: tuple[Any, ...], _: Any) -> int:
    gradient, x, weight, transposed, output_mask = (arguments[i] for i in (0, 1, 2, 7, 10))
    return _convolution(x, weight, gradient, transposed) * (bool(output_mask[0]) + bool(output_mask[1]))


def _pairs(q: Any, k: Any) -> int:
    return _rows(q) * k.shape[-2]


def _attention(arguments: tuple[Any, ...], _: Any) -> int:
    """Count q.k and weights @ v in full: what a kernel skips inside is not visible."""
    q, k, v = arguments[:3]
    return _pairs(q, k) * (q.shape[-1] + v.shape[-1])


def _attention_backward(arguments: tuple[Any, ...], _: Any) -> int:
    """Count five products: the scores again, then the gradients of v, weights, q and k."""
    q, k, v = arguments[1:4]
    return _pairs(q, k) * (3 * q.shape[-1] + 2 * v.shape[-1])


def _recurrent(x: Any, weights: Any) -> int:
    """Multiply every token by every weight matrix once."""
    return _rows(x) * sum(w.numel() for w in weights if w.dim() == 2)


FORMULAS: dict[str, Formula] = {
    "mm": lambda a, out: _product(a[0], a[1]),
    "addmm": lambda a, out: _product(a[1], a[2]),
    "bmm": lambda a, out: _product(a[0], a[1]),
    "baddbmm": lambda a, out: _product(a[1], a[2]),
    "addbmm": lambda a, out: _product(a[1], a[2]),
    "mv": lambda a, out: a[0].numel(),
    "addmv": lambda a, out: a[1].numel(),
    "dot": lambda a, out: a[0].numel(),
    "vdot": lambda a, out: a[0].numel(),
    "addr": lambda a, out: out.numel(),
    # the entries on one side of the diagonal, once for each column of the solution
    "linalg_solve_triangular": lambda a, out: out.numel() * (a[0].shape[-1] - 1) // 2,
    "convolution": lambda a, out: _convolution(a[0], a[1], out, a[6]),
    "_convolution": lambda a, out: _convolution(a[0], a[1], out, a[6]),
    "cudnn_convolution": lambda a, out: _convolution(a[0], a[1], out, False),
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "mkldnn_rnn_layer": lambda a, out: _recurrent(a[0], a[1:3]),
    "mkldnn_rnn_layer_backward": lambda a, out: 2 * _recurrent(a[0], a[1:3]),
    "_cudnn_rnn": lambda a, out: _recurrent(a[0], a[1]),
    "_cudnn_rnn_backward": lambda a, out: 2 * _recurrent(a[0], a[1]),
}

_FREE_NAMES = """
    _assert_async _assert_tensor_metadata _efficientzerotensor _local_scalar_dense _nested_tensor_from_mask
    _pack_padded_sequence _pad_packed_sequence _reshape_alias _reshape_copy _to_copy _unsafe_index _unsafe_index_put
    _unsafe_view _pin_memory alias alias_copy arange as_strided_scatter bernoulli bincount bucketize cat
    channel_shuffle clone constant_pad_nd contiguous copy detach diag_embed diagonal_backward diagonal_scatter
    dropout embedding empty empty_like empty_permuted empty_strided equal expand_copy eye fill flip full full_like
    gather im2col col2im index index_copy index_fill index_put index_select is_same_size item lift lift_fresh
    lift_fresh_copy linspace masked_scatter masked_select multinomial narrow_copy new_empty new_empty_strided
    new_full new_ones new_zeros nonzero normal one_hot ones ones_like permute_copy pixel_shuffle pixel_unshuffle
    rand rand_like randint randint_like randn randn_like random randperm reflection_pad1d reflection_pad2d
    replication_pad1d replication_pad2d repeat repeat_interleave resize roll rot90 scalar_tensor scatter
    select_backward select_scatter set_ set slice_backward slice_scatter split_copy split_with_sizes_copy stack
    sym_numel sym_size sym_storage_offset sym_stride take tril tril_indices triu triu_indices unfold_backward
    uniform unsafe_chunk unsafe_split unsafe_split_with_sizes view_copy zero zeros zeros_like exponential cauchy
    transpose t squeeze unsqueeze swapaxes as_strided _fused_dropout upsample_nearest1d upsample_nearest2d
    max_unpool2d searchsorted is_pinned
"""
FREE = set(_FREE_NAMES.split())
"""Operations without arithmetic; every view is free as well."""

_ADD, _MUL, _DIV, _EXP, _FUN, _CMP = (
    "additions",
    "multiplications",
    "divisions",
    "exponentials",
    "functions",
    "comparisons",
)
OP_CLASSES = {
    _MUL: "elementwise multiplications: scales, gates, norms, squares",
    _DIV: "divisions",
    _ADD: "additions and subtractions outside matrix products",
    _EXP: "exponentials: exp, and those inside softmax, sigmoid, tanh, GELU",
    _FUN: "other functions: square roots, logarithms, sines, powers",
    _CMP: "comparisons and selections: max, ReLU, masks, sorting",
}
"""Op class -> what it includes."""


def _table(lines: dict[str, ElementCounts]) -> dict[str, ElementCounts]:
    return {name: rates for names, rates in lines.items() for name in names.split()}


POINTWISE: dict[str, ElementCounts] = _table(
    {
        "add sub rsub neg bitwise_and bitwise_or bitwise_xor bitwise_not logical_and logical_or logical_xor "
        "logical_not __and__ __or__ __xor__ bitwise_left_shift bitwise_right_shift __lshift__ __rshift__": {_ADD: 1},
        "mul square threshold_backward deg2rad rad2deg leaky_relu leaky_relu_backward _masked_scale ldexp": {_MUL: 1},
        "addcmul lerp native_dropout_backward": {_MUL: 1, _ADD: 1},
        "addcdiv": {_DIV: 1, _ADD: 1},
        "div true_divide reciprocal floor_divide remainder fmod": {_DIV: 1},
        "exp exp2 expm1": {_EXP: 1},
        "sigmoid": {_EXP: 1, _ADD: 1, _DIV: 1},
        "tanh": {_EXP: 1, _ADD: 2, _DIV: 1},
        "silu mish": {_EXP: 1, _ADD: 1, _DIV: 1, _MUL: 1},
        "gelu": {_EXP: 1, _ADD: 1, _MUL: 2},
        "elu celu selu softplus log_sigmoid_forward": {_EXP: 1, _ADD: 1, _CMP: 1},
        "sigmoid_backward tanh_backward": {_MUL: 2, _ADD: 1},
        "silu_backward gelu_backward mish_backward": {_EXP: 1, _MUL: 4, _ADD: 2, _DIV: 1},
        "elu_backward softplus_backward log_sigmoid_backward": {_EXP: 1, _MUL: 1, _CMP: 1},
        "frexp log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh asin acos atan atan2 asinh acosh atanh erf erfc "
        "erfinv pow lgamma digamma sinc logit hypot xlogy logaddexp": {_FUN: 1},
        "abs sign sgn signbit ceil floor round trunc frac eq ne lt le gt ge maximum minimum fmax fmin clamp "
        "clamp_min clamp_max clip relu relu6 hardtanh hardsigmoid hardswish hardshrink softshrink threshold "
        "masked_fill where isnan isinf isfinite isneginf isposinf nan_to_num heaviside copysign hardtanh_backward "
        "hardsigmoid_backward hardswish_backward": {_CMP: 1},
        "native_dropout": {_CMP: 1, _MUL: 1},
        "upsample_bilinear2d grid_sampler_2d": {_MUL: 4, _ADD: 3},
    }
)
"""Operations per element of the first result."""

_SOFTMAX = {_CMP: 1, _ADD: 2, _EXP: 1, _DIV: 1}
_NORM = {_ADD: 3, _MUL: 3}
REDUCING: dict[str, ElementCounts] = _table(
    {
        "sum mean nansum nanmean cumsum trace avg_pool2d avg_pool3d _adaptive_avg_pool2d adaptive_avg_pool2d "
        "_adaptive_avg_pool3d avg_pool2d_backward _adaptive_avg_pool2d_backward embedding_dense_backward "
        "index_add scatter_add _embedding_bag _embedding_bag_forward_only _embedding_bag_dense_backward "
        "_embedding_bag_per_sample_weights_backward": {_ADD: 1},
        "prod cumprod": {_MUL: 1},
        "var var_mean std std_mean": {_ADD: 2, _MUL: 1},
        "linalg_vector_norm norm": {_ADD: 1, _MUL: 1},
        "logsumexp _logcumsumexp logcumsumexp": {_CMP: 1, _ADD: 2, _EXP: 1},
        "_softmax _safe_softmax": _SOFTMAX,
        "_log_softmax": {_CMP: 1, _ADD: 3, _EXP: 1},
        "_softmax_backward_data": {_MUL: 2, _ADD: 2},
        "_log_softmax_backward_data": {_EXP: 1, _MUL: 1, _ADD: 2},
        "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm "
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update "
        "_fused_rms_norm rms_norm": _NORM,
        "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward "
        "cudnn_batch_norm_backward _fused_rms_norm_backward batch_norm_backward": {_ADD: 5, _MUL: 6},
        "max min amax amin aminmax argmax argmin any all cummax cummin topk sort argsort _unique _unique2 "
        "unique_dim unique_consecutive "
        "max_pool2d_with_indices max_pool3d_with_indices mkldnn_max_pool2d adaptive_max_pool2d "
        "max_pool2d_with_indices_backward count_nonzero isin median kthvalue": {_CMP: 1},
        "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward": {_ADD: 1},
        "mse_loss mse_loss_backward": {_ADD: 2, _MUL: 1},
        "binary_cross_entropy_with_logits binary_cross_entropy": {_FUN: 1, _MUL: 2, _ADD: 2},
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell": {_EXP: 1, _ADD: 2, _MUL: 1},
        "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward": {_MUL: 3, _ADD: 1},
    }
)
"""Operations per element of the first input."""


def operation_name(operation: Any) -> str:
    """Return the name used in the tables; operations outside ATen keep their library's prefix."""
    library, _, name = str(operation._overloadpacket).partition(".")
    if library == "prim":
        return "prim"
    name = name if name.endswith("__") else name.removesuffix("_")
    return name if library == "aten" else f"{library}.{name}"


def is_free(operation: Any, name: str) -> bool:
    """Return whether the operation computes nothing."""
    return name in FREE or name == "prim" or bool(operation.is_view)
