"""Group B: attention by hand."""

from qkv.problems.expectation import Answer, AtLeast, AtMost, Near
from qkv.problems.record import register_problem


@register_problem(
    "B1",
    hand_written="exponentials sum to 11.1073; weights 0.665, 0.245, 0.090",
    expected={"sum": Near(11.1073, 5e-5), "weights": Near([0.66524, 0.24473, 0.09003], 5e-6)},
)
def softmax_of_three_scores() -> Answer:
    """The softmax of the scores 2, 1, 0: what do the exponentials sum to, and what are the weights?"""
    import math

    import torch

    import qkv

    query = torch.ones(1, 1, 1, 1, dtype=torch.float64)  # key_dim 1, so that a score is a key
    keys = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64).view(1, 1, 3, 1)
    weights = qkv.weights(query, keys)[0, 0, 0]
    return {"weights": weights.tolist(), "sum": math.exp(2) / weights[0].item()}


@register_problem(
    "B2",
    hand_written="softmax(QK' / sqrt(d_k)) / sqrt(d_k) V, in one of the answers",
    slip="scaled twice: sqrt(d_k) divides the scores once, before the softmax; the weights must still sum to 1",
    expected={
        "apart from torch": AtMost(1e-12),
        "apart from a plain loop": AtMost(1e-12),
        "sum of a row": Near(1, 1e-12),
        "sum of a row scaled twice": Near(11**-0.5, 1e-12),
    },
)
def attention_is_scaled_once() -> Answer:
    """Attention is softmax(QK' / sqrt(d_k)) V: where is the scale applied, and how often?"""
    import math

    import torch
    from torch.nn.functional import scaled_dot_product_attention

    import qkv

    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 5, dim, generator=random, dtype=torch.float64) for dim in (11, 11, 13))
    out = qkv.attend(q, k, v)
    loop = []
    for query in q[0, 0]:
        exps = [math.exp(query @ key / math.sqrt(11)) for key in k[0, 0]]
        loop.append(sum(exp * value for exp, value in zip(exps, v[0, 0], strict=True)) / sum(exps))
    weights = qkv.weights(q, k)
    return {
        "apart from torch": (out - scaled_dot_product_attention(q, k, v)).abs().max().item(),
        "apart from a plain loop": (out[0, 0] - torch.stack(loop)).abs().max().item(),
        "sum of a row": weights[0, 0, 0].sum().item(),
        "sum of a row scaled twice": (weights / math.sqrt(11))[0, 0, 0].sum().item(),
    }


@register_problem(
    "B3",
    hand_written="d_head 64; 589,824 weights per projection, 1,769,472 for Q, K and V",
    expected={
        "key_dim": 64,
        "weights of one projection": 589_824,
        "of Q, K and V": 1_769_472,
        "with 1, 2, 3, 12, 48 heads": [1_769_472] * 5,
    },
)
def projections_of_bert() -> Answer:
    """d_model 768 and 12 heads: how wide is a head, and how many weights project Q, K and V, without biases?

    Does the number of heads change it?
    """
    from qkv.attention import Softmax
    from qkv.layers import MultiHead

    counts = {}
    for heads in (1, 2, 3, 12, 48):
        layer = MultiHead(768, heads, Softmax(), bias=False)
        counts[heads] = [part.weight.numel() for part in (layer.query, layer.key, layer.value)]
    return {
        "key_dim": MultiHead(768, 12, Softmax()).key_dim,
        "weights of one projection": counts[12][0],
        "of Q, K and V": sum(counts[12]),
        "with 1, 2, 3, 12, 48 heads": [sum(count) for count in counts.values()],
    }


@register_problem(
    "B4",
    hand_written="a token is most similar to itself",
    slip="not a law: a longer token scores higher; it holds for equal norms in a positive semidefinite Wq'Wk",
    expected={
        "score of the first token with itself": 1.0,
        "score of the first token with the second": 3.0,
        "equal norms: least lead of itself over another": AtLeast(0),
    },
)
def most_similar_to_itself() -> Answer:
    """Is a token always most similar to itself? Take q = k = x for the tokens (1, 0) and (3, 0)."""
    import torch

    from qkv.attention import Softmax

    scores = Softmax(scale=1.0).scores
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0]], dtype=torch.float64)[None, None]
    found = scores(x, x)[0, 0]

    # now Wq'Wk = A'A, positive semidefinite, and all tokens of norm 1 in it: Cauchy and Schwarz forbid a better other
    random = torch.Generator().manual_seed(0)
    a = torch.randn(7, 7, generator=random, dtype=torch.float64)
    tokens = torch.randn(1, 1, 50, 7, generator=random, dtype=torch.float64)
    projected = torch.nn.functional.normalize(tokens @ a.T, dim=-1)
    equal = scores(projected, projected)[0, 0]
    others = equal.masked_fill(torch.eye(50, dtype=torch.bool), -torch.inf)
    return {
        "score of the first token with itself": found[0, 0].item(),
        "score of the first token with the second": found[0, 1].item(),
        "equal norms: least lead of itself over another": (equal.diagonal() - others.max(1).values).min().item(),
    }


@register_problem(
    "B5",
    hand_written="norms of x1 and x3 2 beta; <x1, x3> = 0, so every token copies itself",
    slip="the norm of d + b is beta sqrt(2), not 2 beta; x1 and x3 share d, so <x1, x3> = beta^2; "
    "copying holds only in the limit of large beta",
    expected={
        "norms at beta 1": Near([2**0.5, 1, 2**0.5], 1e-12),
        "scores at beta 1": Near([[2, 0, 1], [0, 1, 0], [1, 0, 2]], 1e-12),
        "weights at beta 1": Near([[0.665241, 0.090031, 0.244728], [0.211942, 0.576117, 0.211942]], 5e-7),
        "weights at beta 2": Near([[0.981690, 0.000329, 0.017980], [0.017668, 0.964663, 0.017668]], 5.1e-7),
        "relative errors at beta 1": Near([0.3067, 0.6702], 5e-5),
        "relative errors at beta 2": Near([0.01815, 0.05587], 5e-6),
        "relative errors at beta 4": Near([1.1e-7, 3.6e-7], 5e-9),
    },
)
def copying_with_orthogonal_parts() -> Answer:
    """Orthogonal a, b, c, d of norm beta; tokens x1 = d + b, x2 = a, x3 = c + d; q = k = v = x, scale 1.

    What are the norms, scores and weights, and how well does each token copy itself?
    """
    import torch

    import qkv
    from qkv.attention import Softmax

    def at(beta: float) -> tuple[torch.Tensor, ...]:
        a, b, c, d = beta * torch.eye(4, dtype=torch.float64)
        x = torch.stack((d + b, a, c + d))[None, None]
        copied = qkv.attend(x, x, x, scale=1.0)[0, 0]
        error = (copied - x[0, 0]).norm(dim=-1) / x[0, 0].norm(dim=-1)
        weights = qkv.weights(x, x, scale=1.0)[0, 0]
        return x[0, 0].norm(dim=-1), Softmax(scale=1.0).scores(x, x)[0, 0], weights, error

    found = {beta: at(beta) for beta in (1, 2, 4)}
    return {
        "norms at beta 1": found[1][0].tolist(),
        "scores at beta 1": found[1][1].tolist(),
        **{f"weights at beta {beta}": found[beta][2][:2].tolist() for beta in (1, 2)},
        **{f"relative errors at beta {beta}": found[beta][3][:2].tolist() for beta in (1, 2, 4)},
    }


@register_problem(
    "B6",
    hand_written="attention of an encoder-decoder weighs source positions by the decoder's state; "
    "self-attention weighs a sequence by itself",
    expected={
        "source weighed by the decoder's state": Near([[4 / 9, 1 / 9, 4 / 9]], 1e-12),
        "first row of the source weighed by itself": Near([0.42231879825, 0.15536240350, 0.42231879825], 1e-10),
        "shapes": [[1, 3], [3, 3]],
        "additive, the classic one, through the same call": [1, 3],
    },
)
def two_uses_of_one_interface() -> Answer:
    """What is the difference between the classic attention of an encoder-decoder and self-attention?

    Source states (1, 0), (0, 1), (1, 1), the decoder in the state (ln 4, 0), scale 1.
    """
    import math

    import torch

    import qkv
    from qkv.attention import Additive

    source = torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=torch.float64)[None, None]
    decoder = torch.tensor([[math.log(4), 0]], dtype=torch.float64)[None, None]
    crossing = qkv.weights(decoder, source, scale=1.0)[0, 0]
    own = qkv.weights(source, source, scale=1.0)[0, 0]
    return {
        "source weighed by the decoder's state": crossing.tolist(),
        "first row of the source weighed by itself": own[0].tolist(),
        "shapes": [list(crossing.shape), list(own.shape)],
        "additive, the classic one, through the same call": list(
            Additive(key_dim=2).double().weights(decoder, source)[0, 0].shape
        ),
    }


@register_problem(
    "B7",
    hand_written="PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same; PE(pos+k) turns PE(pos)",
    expected={
        "apart from the formula": AtMost(1e-12),
        "apart from a fixed rotation": AtMost(1e-12),
        "permuted without positions, apart": AtMost(1e-12),
        "permuted with positions, apart": AtLeast(0.01),
    },
)
def sinusoidal_positions() -> Answer:
    """What are sinusoidal positions, how are PE(pos + k) and PE(pos) related, and what happens without positions?"""
    import math

    import torch

    from qkv.attention import Softmax
    from qkv.layers import MultiHead
    from qkv.positions import Sinusoidal

    dim, k = 16, 5
    positions = Sinusoidal(dim)
    waves = positions.encode(torch.arange(40), torch.float64)
    angles = [[position / 10000 ** (2 * i / dim) for i in range(dim // 2)] for position in range(40)]
    pairs = [[f(angle) for angle in row for f in (math.sin, math.cos)] for row in angles]
    formula = torch.tensor(pairs, dtype=torch.float64)
    # the rotation by k is the same at every position: a block per frequency
    blocks = [[[math.cos(w), math.sin(w)], [-math.sin(w), math.cos(w)]] for w in angles[k]]
    turn = torch.block_diag(*(torch.tensor(block, dtype=torch.float64) for block in blocks))

    torch.manual_seed(0)
    layer, x, order = MultiHead(dim, 2, Softmax()).double(), torch.randn(1, 7, dim).double(), torch.randperm(7)
    index = torch.arange(7)
    difference = layer(positions(x, index))[:, order] - layer(positions(x[:, order], index))
    return {
        "apart from the formula": (waves - formula).abs().max().item(),
        "apart from a fixed rotation": (waves[k:] - waves[:-k] @ turn.T).abs().max().item(),
        "permuted without positions, apart": (layer(x)[:, order] - layer(x[:, order])).abs().max().item(),
        "permuted with positions, apart": difference.abs().max().item(),
    }


@register_problem(
    "B8",
    hand_written="relative positions are better at long range, adapt to other lengths and train better",
    slip="that is true of some: Shaw's and ALiBi hold beyond the trained length, T5's half, RoPE, which is relative "
    "too, no better than absolute positions",
    expected={
        "shaw, at 8 times the length": AtMost(0.25),
        "alibi, at 8 times the length": AtMost(0.5),
        "shaw and alibi, rise from 1 to 8 times": AtMost(0.25),
        "t5, rise from 1 to 8 times": AtLeast(0.3),
        "rope, sinusoidal and learned, at 8 times the length": AtLeast(0.7),
        "t5 is between": True,
    },
    slow=True,
)
def train_short_test_long() -> Answer:
    """Do relative positions adapt to sequences longer than those trained on?

    Trained on 32 tokens of a language whose entropy is known, tested on up to 256: nats above the entropy.
    """
    import torch

    from qkv.models import Decoder, DecoderConfig
    from qkv.problems import MarkovChain, fit
    from qkv.train import Settings

    language, lengths = MarkovChain(tokens=8), (32, 64, 128, 256)
    settings = Settings(steps=400, batch_size=32, learning_rate=5e-3, warmup=40, validate_every=400)
    losses, excess = {}, {}
    for positions in ("shaw", "alibi", "t5", "rope", "sinusoidal", "learned"):
        torch.manual_seed(0)
        sizes = DecoderConfig(dim=32, heads=4, hidden_dim=64, layers=2, positions=positions, max_length=256)
        model = Decoder(sizes, language.tokens)
        losses[positions] = fit(language.objective(model, settings, length=32), settings)
        excess[positions] = [language.excess_loss(model, length) for length in lengths]
    long = {positions: found[-1] for positions, found in excess.items()}
    rise = {positions: found[-1] - found[0] for positions, found in excess.items()}
    return {
        "lengths": list(lengths),
        "nats above the entropy": excess,
        "loss of every update": losses,
        "shaw, at 8 times the length": long["shaw"],
        "alibi, at 8 times the length": long["alibi"],
        "shaw and alibi, rise from 1 to 8 times": [rise["shaw"], rise["alibi"]],
        "t5, rise from 1 to 8 times": rise["t5"],
        "rope, sinusoidal and learned, at 8 times the length": [long[p] for p in ("rope", "sinusoidal", "learned")],
        "t5 is between": max(rise["shaw"], rise["alibi"]) < rise["t5"] and long["t5"] < max(long.values()),
    }


@register_problem(
    "B10",
    hand_written="each head attends to a different relation",
    expected={
        "parameters": [7_616, 7_616],
        "two heads, both relations right": AtLeast(0.99),
        "one head, both relations right": AtMost(0.9),
    },
    slow=True,
)
def two_relations_at_once() -> Answer:
    """Predict the previous token and the first token of the sequence, both at every position, by one attention layer.

    Can one head do what two heads do, with as many parameters?
    """
    import torch
    from torch import nn

    from qkv.attention import Softmax
    from qkv.layers import MultiHead
    from qkv.positions import Learned

    tokens, length, dim = 32, 8, 32

    def train(heads: int, seed: int) -> tuple[float, int]:
        torch.manual_seed(seed)
        embedding, positions = nn.Embedding(tokens, dim), Learned(dim, length)
        layer, write = MultiHead(dim, heads, Softmax()), nn.Linear(dim, 2 * tokens)
        weights = [weight for part in (embedding, positions, layer, write) for weight in part.parameters()]
        optimizer = torch.optim.Adam(weights, 0.01)
        for step in range(401):
            x = torch.randint(tokens, (128 if step < 400 else 2048, length))
            hidden = layer(positions(embedding(x), torch.arange(length)), causal=True)
            logits = write(hidden)[:, 2:].unflatten(-1, (2, tokens))
            wanted = torch.stack((x[:, 1:-1], x[:, :1].expand(-1, length - 2)), -1)
            if step < 400:  # the last batch is for testing
                optimizer.zero_grad()
                nn.functional.cross_entropy(logits.flatten(0, 2), wanted.flatten()).backward()
                optimizer.step()
        right = (logits.argmax(-1) == wanted).all(-1).float().mean().item()
        return right, sum(weight.numel() for weight in weights)

    found = {heads: [train(heads, seed) for seed in range(3)] for heads in (1, 2)}
    return {
        "one head, both relations right": [right for right, _ in found[1]],
        "two heads, both relations right": [right for right, _ in found[2]],
        "parameters": [found[1][0][1], found[2][0][1]],
    }
