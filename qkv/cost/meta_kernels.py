"""On the meta device, what the CPU would run: fused attention, where torch would otherwise fall back to plain products.

Without it the memory of attention would be that of its matrix of weights, which no CPU or GPU keeps.
(Torch's fake tensors would do the same, but a module that keeps tables of its own would keep fake ones.)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from qkv.cost.meta_run import Play


class as_on_cpu(TorchFunctionMode):  # noqa: N801 - it reads as a phrase: with as_on_cpu()
    """Inside, `scaled_dot_product_attention` on meta goes through the CPU's fused kernel, if the CPU would use it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return _attend(*args, **kwargs)
        return func(*args, **kwargs)


@contextmanager
def unfused_layers() -> Iterator[None]:
    """Inside, torch's fused forms of whole layers are off: what runs is operations that can be seen."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class rehearsing:  # noqa: N801 - it reads as a verb: with rehearsing(play, sizes) as (weights, tensors)
    """Weights and inputs of a module, on meta if it can be, under the CPU's kernels, its fused fast paths off."""

    def __init__(self, play: Play, sizes: Mapping[str, int]):
        self.play, self.sizes = play, sizes
        self.kernels = as_on_cpu()
        self.fast = torch.backends.mha.get_fastpath_enabled()

    def __enter__(self) -> tuple[dict[str, Tensor], list[Tensor]]:
        torch.backends.mha.set_fastpath_enabled(False)
        self.kernels.__enter__()
        return self.play.stage(self.sizes)

    def __exit__(self, *error: Any) -> None:
        self.kernels.__exit__(*error)
        torch.backends.mha.set_fastpath_enabled(self.fast)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    fused = query.is_meta and query.dim() == 4 and query.shape[-1] == value.shape[-1] and not dropout_p
    if not fused or (attn_mask is not None and attn_mask.requires_grad):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
    scale = options.get("scale")
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
