"""31 modules with parameters and multiplications computed by hand, to test every counter on.

A multiplication is one inside a matrix product, a convolution or an einsum; norms, pooling, lookups
and activations have none. Each count is written as its arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Case:
    """One module, its inputs, and the right counts."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    parameters: int
    multiplications: int
    training: bool = True
    """Mode of the published tables; an exact counter does not depend on it."""
    convention: str = ""
    """Where counters differ by convention."""


class Call(nn.Module):
    """A function of its inputs and its own parameters."""

    def __init__(self, function: Callable[..., Any], **shapes: tuple[int, ...]):
        super().__init__()
        self.function = function
        self.learned = nn.ParameterDict({name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()})

    def forward(self, *inputs: Tensor) -> Any:
        """Return function(inputs..., parameters...)."""
        return self.function(*inputs, **self.learned)


class Heads(nn.Module):
    """Torch's multi-head self-attention."""

    def __init__(self, *, bias: bool, need_weights: bool):
        super().__init__()
        self.attention = nn.MultiheadAttention(768, 12, bias=bias, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        """Return the output without the weights."""
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


class SelfAttention(nn.Module):
    """Self-attention with one head, written out."""

    def __init__(self, width: int, key_dim: int, value_dim: int):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, d, bias=False) for d in (key_dim, key_dim, value_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return softmax(q k' / sqrt(d)) v."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v


class Tied(nn.Module):
    """An embedding tied to the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.predict = nn.Linear(64, 1000, bias=False)
        self.predict.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        return self.predict(self.embed(tokens))


class Reused(nn.Module):
    """One layer that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return layer(layer(layer(x)))."""
        return self.layer(self.layer(self.layer(x)))


def convolutional(*, pooled: bool, classes: int = 4, padding: int = 0) -> nn.Sequential:
    """Build two convolutions of a 28 x 28 picture and three linear layers."""
    stride = 1 if pooled else 2
    pool: Callable[[], nn.Module] = (lambda: nn.MaxPool2d(2)) if pooled else nn.Identity
    flat = 400 if pooled else 576
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride, padding), nn.ReLU(), pool()),
        *(nn.Conv2d(8, 16, 3, stride), nn.ReLU(), pool(), nn.Flatten()),
        *(nn.Linear(flat, 320), nn.ReLU(), nn.Linear(320, 120), nn.ReLU(), nn.Linear(120, classes)),
    )


def gpt2(**sizes: Any) -> nn.Module:
    """Build Hugging Face's GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - optional

    return GPT2LMHeadModel(GPT2Config(**sizes))


def llama(**sizes: Any) -> nn.Module:
    """Build Hugging Face's Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - optional

    return LlamaForCausalLM(LlamaConfig(**sizes))


def _linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = functional.elu(q) + 1, functional.elu(k) + 1
    read = torch.einsum("bhnd,bhde->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v))
    return read / torch.einsum("bhnd,bhd->bhn", q, k.sum(2))[..., None]


def _taylor_features(x: Tensor) -> Tensor:
    square = torch.einsum("bhni,bhnj->bhnij", x, x).flatten(3) * 0.5**0.5
    return torch.cat((torch.ones_like(x[..., :1]), x, square), -1)


def _taylor_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = _taylor_features(q), _taylor_features(k)
    read = torch.einsum("bhnf,bhfe->bhne", q, torch.einsum("bhnf,bhne->bhfe", k, v))
    return read / torch.einsum("bhnf,bhf->bhn", q, k.sum(2))[..., None]


def _sdpa(**options: Any) -> Callable[[], nn.Module]:
    return lambda: Call(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **options))


def _heads(key_heads: int = 12) -> tuple[Tensor, ...]:
    return tuple(torch.randn(1, heads, 128, 64) for heads in (12, key_heads, key_heads))


def _tokens(n: int) -> tuple[Tensor, ...]:
    return (torch.arange(n)[None],)


def _wide(batch: int = 1) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 128, 768),)


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)


_NORM = "counted by some as a few multiplications an element"
_WHOLE_SQUARE = "what is executed; 12,681,216 are needed"
MHA = 4 * 768**2 * 128 + 2 * 768 * 128**2  # four projections, two products
ENCODER = 12 * 768**2 * 128 + 2 * 768 * 128**2
CASES = (
    Case("mha_w", lambda: Heads(bias=False, need_weights=True), _wide, 4 * 768**2, MHA),
    Case("mha_nw", lambda: Heads(bias=False, need_weights=False), _wide, 4 * 768**2, MHA),
    Case("mhab_eval", lambda: Heads(bias=True, need_weights=True), _wide, 4 * 768**2 + 4 * 768, MHA, training=False),
    Case("enc_train", _encoder, _wide, 12 * 768**2 + 13 * 768, ENCODER),
    Case("enc_fast", _encoder, _wide, 12 * 768**2 + 13 * 768, ENCODER, training=False),
    Case(
        "lstm",
        lambda: nn.LSTM(64, 128),
        lambda: (torch.randn(50, 1, 64),),
        512 * 192 + 1024,
        50 * 512 * 192,
        convention="50 x 3 x 128 products of gates are elementwise",
    ),
    # 48,672 + 139,392 + 166,880 and 12,168 + 41,472 + 223,200
    Case("cnn_pool", lambda: convolutional(pooled=True), lambda: (torch.randn(1, 1, 28, 28),), 168_572, 354_944),
    Case("cnn_stride", lambda: convolutional(pooled=False), lambda: (torch.randn(1, 1, 28, 28),), 224_892, 276_840),
    Case("sdpa", _sdpa(), _heads, 0, 12 * 128**2 * 128),
    Case("sdpa_causal", _sdpa(is_causal=True), _heads, 0, 12 * 128**2 * 128, convention=_WHOLE_SQUARE),
    Case("sdpa_gqa", _sdpa(enable_gqa=True), lambda: _heads(4), 0, 12 * 128**2 * 128),
    # write, read and normalizer
    Case("linatt", lambda: Call(_linear_attention), _heads, 0, 12 * 128 * (2 * 64**2 + 64)),
    Case(
        "selfatt", lambda: SelfAttention(100, 36, 25), lambda: (torch.randn(1, 75, 100),), 9_700, 61 * 75**2 + 727_500
    ),
    Case("param_matmul", lambda: Call(lambda x, w: x @ w, w=(64, 32)), lambda: (torch.randn(50, 64),), 2048, 50 * 2048),
    Case("embedding", lambda: nn.Embedding(1000, 64), lambda: _tokens(50), 64_000, 0),
    Case("tied", Tied, lambda: _tokens(50), 64_000, 50 * 64_000),
    Case("reuse3", Reused, lambda: (torch.randn(50, 64),), 4096, 3 * 50 * 4096),
    Case("layernorm", lambda: nn.LayerNorm(768), _wide, 1536, 0, convention=_NORM),
    Case("batchnorm", lambda: nn.BatchNorm2d(8), lambda: (torch.randn(2, 8, 26, 26),), 16, 0, convention=_NORM),
    # queries scaled by a vector, then a product: torch runs the first as an elementwise one
    Case(
        "einsum3",
        lambda: Call(lambda q, s, w: torch.einsum("bhnd,bhd,bhde->bhne", q, s, w)),
        lambda: (torch.randn(1, 12, 128, 64), torch.randn(1, 12, 64), torch.randn(1, 12, 64, 64)),
        0,
        12 * 128 * 64 * (1 + 64),
    ),
    Case(
        "addmm",
        lambda: Call(lambda x, w, b: torch.addmm(b, x, w), w=(64, 32), b=(32,)),
        lambda: (torch.randn(50, 64),),
        2080,
        50 * 2048,
    ),
    Case(
        "fconv",
        lambda: Call(lambda x, w: functional.conv2d(x, weight=w), w=(8, 1, 3, 3)),
        lambda: (torch.randn(1, 1, 28, 28),),
        72,
        26**2 * 72,
    ),
    Case(
        "tensordot",
        lambda: Call(lambda x, w: torch.tensordot(x, w, dims=1), w=(64, 32)),
        lambda: (torch.randn(50, 64),),
        2048,
        50 * 2048,
    ),
    Case("gru", lambda: nn.GRU(64, 128), lambda: (torch.randn(50, 1, 64),), 384 * 192 + 768, 50 * 384 * 192),
    # two directions of 64 -> 128, then two of 256 -> 128
    Case(
        "bilstm2",
        lambda: nn.LSTM(64, 128, 2, bidirectional=True),
        lambda: (torch.randn(50, 1, 64),),
        2 * (512 * 192 + 1024) + 2 * (512 * 384 + 1024),
        50 * 2 * 512 * (192 + 384),
    ),
    Case(
        "grouped",
        lambda: nn.Conv2d(8, 16, 3, groups=4, bias=False),
        lambda: (torch.randn(1, 8, 28, 28),),
        288,
        26**2 * 288,
    ),
    Case(
        "convT",
        lambda: nn.ConvTranspose2d(8, 16, 3, stride=2, bias=False),
        lambda: (torch.randn(1, 8, 13, 13),),
        1152,
        13**2 * 1152,
    ),
    # F = 1 + 16 + 256 features: write, read, normalizer, two outer products
    Case(
        "taylor16",
        lambda: Call(_taylor_attention),
        lambda: tuple(torch.randn(1, 4, 128, 16) for _ in range(3)),
        0,
        512 * (2 * 273 * 16 + 273 + 2 * 256),
    ),
    Case(
        "gpt2tiny",
        lambda: gpt2(vocab_size=1000, n_positions=256, n_embd=128, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1),
        lambda: _tokens(64),
        557_568,
        512 * 64**2 + (2 * 12 * 128**2 + 128_000) * 64,
    ),
    Case(
        "llamatiny",
        lambda: llama(
            vocab_size=1000,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        lambda: _tokens(64),
        551_552,
        512 * 64**2 + (2 * (2 * 128**2 + 2 * 128 * 64 + 3 * 128 * 256) + 128_000) * 64,
    ),
    Case("enc_b2", _encoder, lambda: _wide(2), 12 * 768**2 + 13 * 768, 2 * ENCODER),
)
