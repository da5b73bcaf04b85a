"""Group C: costs of layers, counted."""

from qkv.problems.expectation import Answer, AtLeast, Near
from qkv.problems.record import register_problem


@register_problem(
    "C1",
    hand_written="9,700 parameters; 61 n^2 + 9,700 n multiplications",
    expected={
        "parameters": 9_700,
        "multiplications by formula": 1_070_625,
        "multiplications counted": 1_070_625,
        "terms": {"projections": 727_500, "scores": 202_500, "values": 140_625},
    },
)
def self_attention() -> Answer:
    """Self-attention with d_in 100, d_k 36 and d_v 25 over 75 tokens: how many parameters and multiplications?"""
    import torch

    from qkv.attention import Softmax
    from qkv.cost import Shape, count_multiplications
    from qkv.layers import Heads, MultiHead

    attention = Softmax(backend="reference")
    layer = MultiHead(100, Heads(1, key_dim=36, value_dim=25), attention, bias=False)
    projections = (layer.query, layer.key, layer.value)
    parameters = sum(part.weight.numel() for part in projections)
    terms = {"projections": 75 * parameters, **attention.cost(Shape(1, 1, 75, 75, 36, 25)).needed}
    x = torch.randn(1, 75, 100)
    with count_multiplications() as counted:
        q, k, v = (part(x)[:, None] for part in projections)
        attention(q, k, v)
    return {
        "parameters": parameters,
        "terms": terms,
        "multiplications by formula": sum(terms.values()),
        "multiplications counted": counted.total,
    }


@register_problem(
    "C2",
    hand_written="40,000 multiplications per token, 3,000,000 for 75; 40,300 parameters with biases",
    expected={"multiplications per token": 40_000, "of 75 tokens": 3_000_000, "parameters": 40_300},
)
def feed_forward() -> Answer:
    """A feed-forward layer 100 -> 200 -> 100: multiplications per token and for 75 tokens, parameters with biases?"""
    import torch

    from qkv.cost import count_multiplications
    from qkv.layers import FeedForward

    layer = FeedForward(100, 200)
    with count_multiplications() as one:
        layer(torch.randn(1, 1, 100))
    with count_multiplications() as many:
        layer(torch.randn(1, 75, 100))
    parameters = sum(weight.numel() for weight in layer.parameters())
    return {"multiplications per token": one.total, "of 75 tokens": many.total, "parameters": parameters}


@register_problem(
    "C3",
    hand_written="150 parameters for 75 tokens",
    slip="150 is the number of statistics, a mean and a variance for each of 75 tokens; 2 x 100 parameters are learned",
    expected={"learned parameters": 200, "statistics per token": 2, "statistics of 75 tokens": 150},
)
def layer_normalization() -> Answer:
    """Layer normalization over 100 features: how many parameters does it learn, how many statistics does it compute?"""
    import torch

    from qkv.layers import PreNorm

    layer = PreNorm(100)
    x = torch.randn(1, 75, 100)
    statistics = torch.stack((x.mean(-1), x.var(-1, unbiased=False)), -1)
    spread = (statistics[..., 1:] + layer.norm.eps).sqrt()
    assert torch.allclose((x - statistics[..., :1]) / spread, layer.norm(x), atol=1e-5)  # they are all it needs
    return {
        "learned parameters": sum(weight.numel() for weight in layer.parameters()),
        "statistics per token": statistics.shape[-1],
        "statistics of 75 tokens": statistics.numel(),
    }


@register_problem(
    "C4",
    hand_written="50,300 and 200,300 parameters",
    slip="one total drops the factor 4, and statistics are counted as if they were parameters",
    expected={
        "before normalization": 200_000,
        "with one layer norm each": 200_800,
        "with two": 201_600,
        "with an output projection too": 211_600,
    },
)
def four_layers() -> Answer:
    """Four layers of C1 and C2: how many parameters, without and with layer norms and an output projection?"""
    from functools import partial

    from torch import nn

    from qkv.attention import Softmax
    from qkv.layers import EncoderBlock, FeedForward, Heads, MultiHead, PreNorm

    heads = partial(MultiHead, 100, Heads(1, key_dim=36, value_dim=25), Softmax(), bias=False)
    blocks = [EncoderBlock(heads(), FeedForward(100, 200), partial(PreNorm, 100)) for _ in range(4)]

    def size(*parts: nn.Module) -> int:
        return sum(weight.numel() for part in parts for weight in part.parameters())

    outputs = size(*(block.attention.output for block in blocks))
    first = size(*(block.around_attention for block in blocks))
    second = size(*(block.around_feed_forward for block in blocks))
    whole = size(*blocks)
    return {
        "before normalization": whole - outputs - first - second,
        "with one layer norm each": whole - outputs - second,
        "with two": whole - outputs,
        "with an output projection too": whole,
    }


@register_problem(
    "C5",
    hand_written="the cost of softmax attention grows exponentially with the length",
    slip="quadratic is not exponential: doubling the length multiplies the cost by 4, whatever the length",
    expected={
        "lengths": [128, 256, 512, 1024],
        "multiplications": [2 * n * n * 64 for n in (128, 256, 512, 1024)],
        "counted": [2 * n * n * 64 for n in (128, 256, 512, 1024)],
        "growth at each doubling": [4.0, 4.0, 4.0],
        "milliseconds": AtLeast(0),
    },
)
def quadratic_cost() -> Answer:
    """How does the cost of softmax attention grow with the length L, for D = 64?"""
    from functools import partial
    from itertools import pairwise

    import torch

    from qkv.attention import Softmax
    from qkv.cost import Shape, count_multiplications, measure

    attention, lengths = Softmax(), [128, 256, 512, 1024]
    formula, executed, times = [], [], []
    for n in lengths:
        q, k, v = torch.randn(3, 1, 1, n, 64)
        formula.append(sum(attention.cost(Shape(1, 1, n, n, 64, 64)).needed.values()))
        with count_multiplications() as counted:
            attention(q, k, v)
        executed.append(counted.total)
        times.append(measure(partial(attention, q, k, v)).milliseconds)
    growth = [after / before for before, after in pairwise(formula)]
    return {
        "lengths": lengths,
        "multiplications": formula,
        "counted": executed,
        "growth at each doubling": growth,
        "milliseconds": times,
    }


@register_problem(
    "C6",
    hand_written="168,572 parameters with pooling, 224,892 with stride",
    expected={
        "4 classes, pool": [168_572, 354_944],
        "4 classes, stride": [224_892, 276_840],
        "4 classes, stride, padded by 1": [224_892, 278_784],
        "10 classes, pool": [169_298, 355_664],
        "10 classes, stride": [225_618, 277_560],
        "saved by stride": Near(0.22, 0.005),
    },
)
def convolutional_nets() -> Answer:
    """A convolutional net on 28 x 28: parameters and multiplications with pooling, and with stride 2 instead?

    Convolutions 1 -> 8 and 8 -> 16 of 3 x 3, then 320 -> 120 -> classes.
    """
    import torch

    from qkv.cost import count_multiplications
    from qkv.models import Convolutional

    def size(classes: int, downsample: str, padding: int = 0) -> list[int]:
        model = Convolutional(classes, downsample, padding)
        with torch.no_grad(), count_multiplications() as counted:
            model(torch.zeros(1, 1, 28, 28))
        return [sum(weight.numel() for weight in model.parameters()), counted.total]

    pool, stride = size(4, "pool"), size(4, "stride")
    return {
        "4 classes, pool": pool,
        "4 classes, stride": stride,
        "4 classes, stride, padded by 1": size(4, "stride", padding=1),
        "10 classes, pool": size(10, "pool"),
        "10 classes, stride": size(10, "stride"),
        "saved by stride": 1 - stride[1] / pool[1],
    }
