"""Run a module without its weights: on torch's meta device, where tensors have shapes but no data.

Nothing is computed or allocated, so a model of any size can be counted. The module keeps its own weights;
empty ones replace them for the duration of one call.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from qkv.cost.counter import count_multiplications
from qkv.cost.input_spec import Input
from qkv.cost.meta_kernels import RememberedKernels
from qkv.cost.record import Cost, Span


@dataclass(frozen=True)
class ModuleCall:
    """A module and the arguments it is called with."""

    module: nn.Module
    inputs: tuple[Input, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `forward`."""
    real_weights: bool = False
    """Whether to run on the CPU with copies of the weights (zeros, if they are on meta)."""

    def make_arguments(self, sizes: Mapping[str, int]) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return weights and inputs for one call."""
        device = "cpu" if self.real_weights else "meta"
        return self.make_weights(device), [given.make_tensor(sizes, device) for given in self.inputs]

    def make_weights(self, device: str) -> dict[str, Tensor]:
        """Return empty weights on `device`, or copies if `real_weights`; tied weights stay tied."""
        copies: dict[int, Tensor] = {}
        found = {}
        named = (self.module.named_parameters, self.module.named_buffers)
        for name, weight in (pair for list_all in named for pair in list_all(remove_duplicate=False)):
            if id(weight) not in copies:
                copy = _copy_to_cpu(weight) if self.real_weights else torch.empty_like(weight, device=device)
                if isinstance(weight, nn.Parameter):
                    copy = nn.Parameter(copy, requires_grad=weight.requires_grad)
                copies[id(weight)] = copy
            found[name] = copies[id(weight)]
        return found

    def kernels(self) -> AbstractContextManager[object]:
        """Return a context manager in which equal operations on the meta device run once."""
        return nullcontext() if self.real_weights else RememberedKernels()

    @property
    def declares_cost(self) -> bool:
        """Whether the module declares a cost for such inputs: one or two sequences."""
        shapes = [given.shape for given in self.inputs]
        return hasattr(self.module, "cost") and len(shapes) <= 2 and all(len(shape) >= 2 for shape in shapes)

    def declared_cost(self, sizes: Mapping[str, int], element_bytes: int = 4) -> Cost:
        """Return the declared cost, if `declares_cost`: integers by arithmetic, at any length in no time."""
        module: Any = self.module
        *source, target = (given.resolve_shape(sizes) for given in self.inputs)
        span = Span(
            target[0],
            target[1],
            context=source[0][1] if source else None,
            causal=bool(self.options.get("causal")),
            element_bytes=element_bytes,
        )
        cost: Cost = module.cost(span)
        return cost

    def run(self, weights: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> Any:
        """Call the module with these weights instead of its own."""
        return torch.func.functional_call(self.module, dict(weights), tuple(tensors), dict(self.options))


def _copy_to_cpu(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight, device="cpu") if weight.is_meta else weight.detach().clone()


@contextmanager
def module_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the module into training or evaluation mode; restore the mode of every submodule afterwards."""
    before = {part: part.training for part in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for part, was in before.items():
            part.training = was


@contextmanager
def unfused_layers() -> Iterator[None]:
    """Disable torch's fused paths for whole layers, so that each operation is visible."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def dry_run(call: ModuleCall, sizes: Mapping[str, int]) -> Iterator[tuple[dict[str, Tensor], list[Tensor]]]:
    """Yield weights and inputs for one call, under the attention kernel of the CPU and without fused layers."""
    with unfused_layers(), _CpuAttention(), call.kernels():
        yield call.make_arguments(sizes)


class DataDependentError(Exception):
    """The module reads tensor values, which meta tensors do not have; it has to run on real data."""


class ForwardError(ValueError):
    """The module's own `forward` failed."""

    def __init__(self, call: ModuleCall, sizes: Mapping[str, int], error: BaseException):
        given = ", ".join(map(str, call.inputs))
        at = f" at {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        super().__init__(f"{type(call.module).__name__} cannot be called with {given}{at}: {reason}")


def count_forward(call: ModuleCall, sizes: Mapping[str, int], *, trace: bool = False) -> count_multiplications:
    """Count the operations of one forward pass."""
    counting = count_multiplications(strict=False, trace=trace)
    weights, tensors = call.make_arguments(sizes)
    try:
        with torch.no_grad(), counting.track_modules(call.module), call.kernels(), counting:
            call.run(weights, tensors)
    except Exception as error:
        if not call.real_weights and is_data_dependent(error):
            raise DataDependentError(str(error).split("\n")[0]) from error
        raise ForwardError(call, sizes, error) from error
    return counting


def count_backward(call: ModuleCall, sizes: Mapping[str, int], *, input_gradients: bool) -> int:
    """Count the multiplications of the backward pass alone; `input_gradients`: inputs require gradients too."""
    weights, tensors = call.make_arguments(sizes)
    if input_gradients:
        tensors = [x.requires_grad_() if x.is_floating_point() else x for x in tensors]
    with torch.enable_grad(), call.kernels():
        out = sum(x.sum() for x in tensors_in(call.run(weights, tensors)) if x.requires_grad)
        with count_multiplications() as counting:
            if isinstance(out, Tensor):
                out.backward()
    return counting.total


def is_data_dependent(error: BaseException) -> bool:
    """Return whether torch complains that the values of a meta tensor were read."""
    words = ("meta tensor", "Meta tensor", "meta device", "data-dependent", "'Meta' backend", "no data")
    return isinstance(error, NotImplementedError | RuntimeError) and any(word in str(error) for word in words)


def describe_error(error: BaseException) -> str:
    """Return why a forward pass failed, in words; the texts of torch's own errors are for its developers."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "torch" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, ValueError) and module.partition(".")[0] != "torch" and len(first) <= 120:
        return first
    return "torch cannot run an operation of the module this way"


def tensors_in(value: Any) -> list[Tensor]:
    """Return all tensors of a result, in whatever containers they are."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [x for item in value.values() for x in tensors_in(item)]
    if isinstance(value, tuple | list):
        return [x for item in value for x in tensors_in(item)]
    return [x for item in vars(value).values() for x in tensors_in(item)] if hasattr(value, "__dict__") else []


class _CpuAttention(TorchFunctionMode):
    """Route `scaled_dot_product_attention` on meta through the CPU's fused kernel, where the CPU would use it.

    On meta, torch falls back to plain products, whose memory includes the matrix of weights that no CPU or GPU
    keeps. (Fake tensors would avoid this too, but a module that caches tables would then cache fake ones.)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return _attend(*args, **kwargs)
        return func(*args, **kwargs)


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


LOWERED = frozenset(
    {
        *(functional.linear, functional.conv1d, functional.conv2d, functional.scaled_dot_product_attention),
        *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, torch.conv1d, torch.conv2d),
        *(Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm),
    }
)
"""Functions that autocast runs in half precision."""
RAISED = frozenset(
    {
        *(functional.layer_norm, functional.softmax, functional.log_softmax, functional.cross_entropy),
        *(torch.softmax, torch.log_softmax, Tensor.softmax, Tensor.log_softmax),
    }
)
"""Functions that autocast runs in float32."""


class MetaAutocast(TorchFunctionMode):
    """Context manager that casts the arguments of functions on meta tensors as `torch.autocast("cuda")` does.

    A weight is cast once, and its copy is kept, as by torch's cache. Dropout keeps a mask of one byte per value, as on
    CUDA.
    """

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.dtype = dtype
        self.enabled = True
        """Whether it casts; a region without autocast sets this to False."""
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout and args[0].is_meta:
            return _dropout(*args, **{name: x for name, x in kwargs.items() if name != "inplace"})
        if not self.enabled or func not in LOWERED | RAISED:
            return func(*args, **kwargs)
        dtype = self.dtype if func in LOWERED else torch.float32
        return func(*(self._cast(x, dtype) for x in args), **{name: self._cast(x, dtype) for name, x in kwargs.items()})

    def copies(self) -> list[Tensor]:
        """Return the copies of weights in half precision."""
        return [copy for _, copy in self._copies.values()]

    def _cast(self, x: Any, dtype: torch.dtype) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(self._cast(one, dtype) for one in x)
        if not isinstance(x, Tensor) or not x.is_meta or not x.is_floating_point() or x.dtype == torch.float64:
            return x
        if not (x.is_leaf and x.requires_grad) or x.dtype == dtype:
            return x.to(dtype)
        if id(x) not in self._copies:
            self._copies[id(x)] = x, x.to(dtype)  # the weight too, so that its id is not given to another
        return self._copies[id(x)][1]


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, *_: Any) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x
