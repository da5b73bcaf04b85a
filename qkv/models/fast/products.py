"""Products with a fixed matrix on a CPU, its weights laid out once for the kernel that reads them.

    y = activation(x W' + b)        or        y = residual + x W' + b

torch's own `linear` keeps W as it is trained, (outputs, inputs), which is the slow order for a few rows of x. oneDNN
reorders it into blocks: the same product in float32 then takes a half to a third of the time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

ROWS_HINT = 16
"""Rows of x for which oneDNN chooses its blocks; these serve one row and hundreds equally well."""
LEVELS = 127
"""Largest magnitude of an int8 weight, and of a quantized input."""
ZERO = 128
"""Unsigned integer that stands for an input of 0."""

MakeProduct = Callable[[Tensor, Tensor | None, nn.Module | None], "Product"]
"""Lay out weights (outputs, inputs), a bias and an activation."""


class Product(ABC):
    """The product of rows (rows, inputs) with a fixed matrix."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Return activation(x W' + b)."""

    @abstractmethod
    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + x W' + b; there must be no activation."""


class PackedProduct(Product):
    """A product in float32, by oneDNN's blocked weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: nn.Module | None = None):
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS_HINT)
        self.bias = None if bias is None else bias.detach()
        # overloads by name: torch tries them in turn, and prints all arguments into the error of each that fails
        self.kernel = torch.ops.mkldnn._linear_pointwise.default
        self.adding_kernel = torch.ops.mkldnn._linear_pointwise.binary
        known = _post_operation(activation)
        self.name, self.algorithm = known or ("none", "")
        self.activation = None if known else activation

    def __call__(self, x: Tensor) -> Tensor:
        """Return activation(x W' + b), in one call for the activations that oneDNN knows."""
        out = self.kernel(x, self.weight, self.bias, self.name, [], self.algorithm)
        return out if self.activation is None else self.activation(out)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + x W' + b, in one call."""
        return self.adding_kernel(x, residual, self.weight, self.bias, "add")


class TransposedProduct(Product):
    """A product in any precision; the weights have the order in which a product of few rows reads them."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: nn.Module | None = None):
        self.weight = weight.detach().T.contiguous()
        self.bias = weight.new_zeros(weight.shape[0]) if bias is None else bias.detach()
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """Return activation(x W' + b)."""
        out = torch.addmm(self.bias, x, self.weight)
        return out if self.activation is None else self.activation(out)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + x W' + b."""
        return torch.addmm(self.bias, x, self.weight).add_(residual)


class Int8Product(Product):
    """A product of 8-bit integers: a scale for each output's weights, and for each row of x its own.

    Integer sums are exact and each row is rounded by itself, so a row gives the same result in every batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: nn.Module | None = None):
        weight = weight.detach()
        self.kernel = torch.ops.onednn.qlinear_pointwise.default
        self.tiny = torch.tensor(torch.finfo(torch.float32).tiny)  # a row of zeros has a scale, too
        scale = weight.abs().amax(1) / LEVELS + self.tiny
        rounded = (weight / scale[:, None]).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.scale = scale
        self.zeros = torch.zeros(weight.shape[0], dtype=torch.int64)
        self.bias = weight.new_zeros(weight.shape[0]) if bias is None else bias.detach()
        self.middle = torch.tensor(ZERO + 0.5)  # truncation after adding 0.5 rounds
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """Return activation(x W' + b)."""
        out = self._multiply(x, self.bias)
        return out if self.activation is None else self.activation(out)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + x W' + b."""
        return self._multiply(x, self.bias).add_(residual)

    def _multiply(self, x: Tensor, bias: Tensor) -> Tensor:
        """Return x W' + bias; a row with NaN or inf gives NaN, since its scale does."""
        scale = torch.add(self.tiny, torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True), alpha=1 / LEVELS)
        rounded = torch.addcdiv(self.middle, x, scale).to(torch.uint8)
        out = self.kernel(
            rounded, 1.0, ZERO, self.weight, self.scale, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return torch.addcmul(bias, out, scale)


def float_product(dtype: torch.dtype) -> MakeProduct:
    """Return the fastest exact product in this dtype."""
    return PackedProduct if dtype == torch.float32 and torch.backends.mkldnn.is_available() else TransposedProduct


def int8_works() -> bool:
    """Return whether this CPU sums int8 products exactly: some old ones saturate at 16 bits."""
    if not torch.backends.mkldnn.is_available():
        return False
    largest = torch.full((16, 64), float(LEVELS))
    found = Int8Product(largest, None)(largest[:2])
    return bool(torch.allclose(found, torch.full((2, 16), 64.0 * LEVELS**2)))


def _post_operation(activation: nn.Module | None) -> tuple[str, str] | None:
    """Return oneDNN's name and algorithm of an activation; None if it has none."""
    if activation is None:
        return "none", ""
    if type(activation) is nn.ReLU:
        return "relu", ""
    return ("gelu", activation.approximate) if type(activation) is nn.GELU else None
