"""Group D: attention in linear time."""

from qkv.problems.expectation import Answer, AtLeast, AtMost, Near
from qkv.problems.record import register_problem


@register_problem(
    "D1",
    hand_written="D^(K-1) features, and a block of the square without its 1/2",
    slip="that is the last block only: there are (D^K - 1)/(D - 1) in all, and block n is divided by sqrt(n!)",
    expected={
        "features of D = 2, K = 3": 7,
        "packed of D = 2, K = 3": 6,
        "features of D = 16, K = 3": 273,
        "packed of D = 16, K = 3": 153,
        "by formula": [7, 6, 273, 153],
        "apart from the first K terms": AtMost(1e-12),
        "apart when packed": AtMost(1e-12),
    },
)
def features_of_the_exponential() -> Answer:
    """A feature map whose dot product is the first K terms of exp(q.k): how many features has it?

    And how many are left when equal ones are packed together?
    """
    from math import comb, factorial

    import torch

    from qkv.attention import taylor_features

    def blocks(x: torch.Tensor, terms: int) -> torch.Tensor:
        """Block n is x tensored n times, divided by sqrt(n!)."""
        power, found = x.new_ones(1), []
        for n in range(terms):
            found.append(power * factorial(n) ** -0.5)
            power = torch.kron(power, x)
        return torch.cat(found)

    sizes: dict[str, int] = {}
    errors = {"whole": 0.0, "packed": 0.0}
    random = torch.Generator().manual_seed(0)
    for dim in (2, 16):
        q, k = torch.randn(2, dim, generator=random, dtype=torch.float64)
        terms = sum((q @ k) ** n / factorial(n) for n in range(3))
        whole, packed = (blocks(q, 3), blocks(k, 3)), (taylor_features(q, 2), taylor_features(k, 2))
        sizes |= {f"features of D = {dim}, K = 3": len(whole[0]), f"packed of D = {dim}, K = 3": len(packed[0])}
        errors["whole"] = max(errors["whole"], abs(whole[0] @ whole[1] / terms - 1).item())
        errors["packed"] = max(errors["packed"], abs(packed[0] @ packed[1] / terms - 1).item())
    return {
        **sizes,
        "by formula": [count for dim in (2, 16) for count in ((dim**3 - 1) // (dim - 1), comb(dim + 2, 2))],
        "apart from the first K terms": errors["whole"],
        "apart when packed": errors["packed"],
    }


@register_problem(
    "D2",
    hand_written="(q.k)^2 = trace(qq'kk') = vec(qq').vec(kk') = x1^2 y1^2 + x2^2 y2^2 + 2 x1 x2 y1 y2",
    expected={"five ways": Near([16.0] * 5, 1e-12)},
)
def square_of_a_dot_product() -> Answer:
    """The square of a dot product as a dot product of features: try it on q = (1, 3), k = (-2, 2)."""
    import torch

    from qkv.attention import taylor_features

    q, k = torch.tensor([[1.0, 3.0], [-2.0, 2.0]], dtype=torch.float64)
    (x1, x2), (y1, y2) = q.tolist(), k.tolist()
    outer = torch.outer(q, q), torch.outer(k, k)
    # (q.k)^2 / 2 is what the second order adds to the first
    second, first = (taylor_features(q, order) @ taylor_features(k, order) for order in (2, 1))
    ways = {
        "(q.k)^2": (q @ k) ** 2,
        "trace(qq'kk')": torch.trace(outer[0] @ outer[1]),
        "vec(qq').vec(kk')": outer[0].flatten() @ outer[1].flatten(),
        "written out": x1**2 * y1**2 + x2**2 * y2**2 + 2 * x1 * x2 * y1 * y2,
        "packed features": 2 * (second - first),
    }
    return {"five ways": [float(way) for way in ways.values()], "names": list(ways)}


@register_problem(
    "D3",
    hand_written="Z = diag(phi(Q) phi(K)' 1)^-1 phi(Q) (phi(K)' V), the normalizer summed over i",
    slip="row i of the normalizer sums over the keys j, not over i",
    expected={
        "apart from qkv.attend(kind='taylor')": AtMost(1e-12),
        "error falls with every term, scores up to 1": True,
        "error at 7 terms, scores up to 1": AtMost(1e-3),
        "error at 3 terms grows with the scores": True,
        "weights turn negative below, 2 terms": Near(-1, 1e-9),
        "weights turn negative below, 4 terms": Near(-1.596, 5e-4),
        "least sum of 3 terms": Near(0.5, 1e-3),
        "an odd order raises an error": True,
    },
)
def approximated_softmax() -> Answer:
    """How near does linear attention with K Taylor terms come to softmax, and when do weights turn negative?"""
    from math import factorial

    import torch

    import qkv
    from qkv.attention import Taylor, taylor_features

    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 64, dim, generator=random, dtype=torch.float64) for dim in (4, 4, 8))
    largest = (q @ k.transpose(-1, -2)).abs().max()

    def linear(q: torch.Tensor, terms: int) -> torch.Tensor:
        reading, writing = taylor_features(q, terms - 1), taylor_features(k, terms - 1)
        return reading @ (writing.transpose(-1, -2) @ v) / (reading @ writing.sum(-2)[..., None])

    errors = {}
    for size in (0.5, 1, 2, 4):
        scaled = q * size / largest  # scores up to `size`
        exact = qkv.attend(scaled, k, v, scale=1.0)
        errors[size] = [((linear(scaled, K) - exact).norm() / exact.norm()).item() for K in range(1, 8)]

    def total(x: float, terms: int) -> float:
        return sum(x**n / factorial(n) for n in range(terms))

    def zero(terms: int, low: float = -4.0, high: float = 0.0) -> float:
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if total(middle, terms) < 0 else (low, middle)
        return high

    try:
        Taylor(order=3)
        raises = False
    except ValueError:
        raises = True
    same = linear(q, 3) - qkv.attend(q, k, v, kind="taylor", order=2, scale=1.0)
    return {
        "errors for K = 1..7 by size of the scores": {str(size): found for size, found in errors.items()},
        "apart from qkv.attend(kind='taylor')": same.abs().max().item(),
        "error falls with every term, scores up to 1": errors[1] == sorted(errors[1], reverse=True),
        "error at 7 terms, scores up to 1": errors[1][6],
        "error at 3 terms grows with the scores": errors[0.5][2] < errors[1][2] < errors[2][2] < errors[4][2],
        "weights turn negative below, 2 terms": zero(2),
        "weights turn negative below, 4 terms": zero(4),
        "least sum of 3 terms": min(total(x / 100, 3) for x in range(-900, 901)),
        "an odd order raises an error": raises,
    }


@register_problem(
    "D4",
    hand_written="O(L D^K), because no matrix product is needed",
    slip="there are matrix products; what saves is their order: phi(K)'V first, which does not grow with L",
    expected={
        "features": 153,
        "multiplications": [n * 153 * (64 + 65) for n in (1024, 2048, 4096, 8192)],
        "counted": [n * 153 * (64 + 65) for n in (1024, 2048, 4096, 8192)],
        "growth at each doubling": [2.0, 2.0, 2.0],
        "the other order, counted": 2048 * 2048 * (16 + 64),
        "milliseconds": AtLeast(0),
    },
)
def linear_cost() -> Answer:
    """What does attention with H features cost, and why is it linear in the length?

    Order 2 on keys of 16, so H = 153, and values of 64.
    """
    from functools import partial
    from itertools import pairwise

    import torch

    from qkv.attention import Taylor
    from qkv.cost import Shape, count_multiplications, measure

    attention, lengths = Taylor(order=2, backend="chunked"), [1024, 2048, 4096, 8192]
    formula, executed, times = [], [], []
    for n in lengths:
        q, k, v = (torch.randn(1, 1, n, dim) for dim in (16, 16, 64))
        formula.append(sum(attention.cost(Shape(1, 1, n, n, 16, 64)).needed.values()))
        with count_multiplications() as counted:
            attention(q, k, v)
        executed.append(counted.total)
        times.append(measure(partial(attention, q, k, v)).milliseconds)
    q, k, v = (torch.randn(1, 1, 2048, dim) for dim in (16, 16, 64))
    with count_multiplications() as other:
        attention.weights(q, k) @ v
    return {
        "features": attention.feature_dim(16),
        "lengths": lengths,
        "multiplications": formula,
        "counted": executed,
        "growth at each doubling": [after / before for before, after in pairwise(formula)],
        "the other order, counted": other.total,
        "milliseconds": times,
    }


@register_problem(
    "D5",
    hand_written="y_i = sum_j (q_i.k_j) v_j = q_i' (sum_j k_j v_j')",
    expected={
        "two orders apart": AtMost(1e-12),
        "fast form apart": AtMost(1e-12),
        "token by token apart": AtMost(1e-12),
        "elements of the state": 7 * 5,
    },
)
def without_the_exponential() -> Answer:
    """Drop the exp: are sum_j (q_i.k_j) v_j and q_i' (sum_j k_j v_j') the same, also token by token?"""
    import torch

    import qkv
    from qkv.attention import Linear

    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 50, dim, generator=random, dtype=torch.float64) for dim in (7, 7, 5))
    one, other = (q @ k.mT) @ v, q @ (k.mT @ v)
    causal = (q @ k.mT).tril() @ v
    linear = Linear(scale=1.0)
    state = linear.start(1, 1, 7, 5, dtype=torch.float64)
    tokens = []
    for t in range(50):
        token, state = linear.step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state)
        tokens.append(token)
    return {
        "two orders apart": ((one - other).abs().max() / one.abs().max()).item(),
        "fast form apart": ((qkv.attend(q, k, v, kind="linear", scale=1.0) - one).abs().max() / one.abs().max()).item(),
        "token by token apart": ((torch.cat(tokens, 2) - causal).abs().max() / causal.abs().max()).item(),
        "elements of the state": state.bytes // 8,
    }
