"""A linear layer that shares its weights with another one, and multiplies by a packed copy of them."""

import torch
from torch import Tensor, nn

from qkv.models.fast.products import MakeProduct, Product


class PackedLinear(nn.Linear):
    """`nn.Linear` with a fast product for inference on a CPU.

    The weights are packed at the first call, and later changes of them are not seen. With gradients, under autocast and
    after a move to another device or dtype it is the plain layer.
    """

    def __init__(self, layer: nn.Linear, make_product: MakeProduct):
        nn.Module.__init__(self)  # not that of nn.Linear, which would draw new weights
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.make_product = make_product
        self.dtype = layer.weight.dtype
        self._product: Product | None = None

    @property
    def product(self) -> Product:
        """The packed product."""
        if self._product is None:
            self._product = self.make_product(self.weight, self.bias, None)
        return self._product

    def forward(self, x: Tensor) -> Tensor:
        """Return x W' + b."""
        if x.dtype != self.dtype or not is_fast(x):
            return super().forward(x)
        return self.product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)

    def _get_name(self) -> str:
        """Return the name of the plain layer: the fingerprint of a model, in files of states, reads it."""
        return "Linear"


def is_fast(x: Tensor) -> bool:
    """Return whether packed weights may be used: on a CPU, without gradients and autocast."""
    return x.device.type == "cpu" and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
