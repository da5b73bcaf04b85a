"""Pictures and costs of attention kinds and position schemes, inserted into their written pages."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from examples.attention_picture import SENTENCE, word_vectors
from qkv.attention import Softmax, build, kinds
from qkv.cost import Shape, count_multiplications
from qkv.draw import Panel, heatmaps
from qkv.layers import MultiHead
from qkv.positions import Positions, Sizes, schemes

VALUE_DIM = 64
SIZES = Sizes(dim=512, heads=8, key_dim=64, length=1024, bidirectional=False)
LENGTHS = (256, 1024, 4096, 16384)


def fill_attention(folder: Path) -> dict[str, str]:
    """Return file name -> text for the pages and pictures of all kinds."""
    found = {name: kinds[name] for name in kinds}
    return _fill("attention", folder, found, lambda name: (_kind_picture(name), _kind_cost(name)))


def fill_positions(folder: Path) -> dict[str, str]:
    """Return file name -> text for the pages and pictures of all position schemes."""
    found = {name: schemes[name] for name in schemes}
    return _fill("positions", folder, found, lambda name: (_scheme_picture(name), _scheme_cost(name)))


def _fill(
    group: str, folder: Path, classes: Mapping[str, type], make: Callable[[str], tuple[str, str]]
) -> dict[str, str]:
    pages: dict[str, str] = {}
    for name in classes:
        picture, cost = make(name)
        path = folder / f"{name}.md"
        text = path.read_text() if path.exists() else _default_page(name, classes[name])
        for mark in ("<!-- picture -->", "<!-- cost -->"):
            if text.count(mark) != 1:
                raise ValueError(f"{folder / name}.md must have one line {mark}, got {text.count(mark)}")
        text = text.replace("<!-- picture -->", f"![{name}]({name}.svg)").replace("<!-- cost -->", cost)
        pages |= {f"{group}/{name}.md": text, f"{group}/{name}.svg": picture}
    return pages


def _default_page(name: str, cls: type) -> str:
    """Return the page of a kind without a written one: its module docstring."""
    docstring = inspect.getdoc(inspect.getmodule(cls)) or ""
    return f"# {name}\n\n```\n{docstring}\n```\n\n<!-- picture -->\n\n<!-- cost -->\n"


def _kind_picture(name: str) -> str:
    x = word_vectors(SENTENCE)
    torch.manual_seed(0)
    kind = build(name, key_dim=x.shape[-1])
    pairs = {"softmax": Softmax(), name: kind}
    with torch.no_grad():
        panels = [Panel(title, one.weights(x, x, causal=True)[0, 0].tolist()) for title, one in pairs.items()]
    untrained = ", with untrained weights" if list(kind.parameters()) else ""
    return heatmaps(panels, SENTENCE, f"Rows attend to columns: softmax and {name}{untrained}"[:80])


def _kind_cost(name: str) -> str:
    """Return a n^2 + b n, fitted to the cost at two lengths and checked at others, and a table of numbers."""
    key_dim = kinds[name].typical_key_dim
    torch.manual_seed(0)
    kind = build(name, key_dim=key_dim)

    def needed(n: int) -> int:
        return sum(kind.cost(Shape(1, 1, n, n, key_dim, VALUE_DIM)).needed.values())

    square = (needed(2) - 2 * needed(1)) // 2
    line = needed(1) - square
    for n in (3, 100, 4096):
        if needed(n) != square * n * n + line * n:
            raise ValueError(f"the cost of {name} is not a polynomial of degree 2 in the length")
    terms = " + ".join(f"{c:,} {n}" for c, n in ((square, "n^2"), (line, "n")) if c)
    rows = []
    for n in LENGTHS:
        cost = kind.cost(Shape(1, 1, n, n, key_dim, VALUE_DIM, causal=True))
        rows.append(f"| {n:,} | {needed(n):,} | {sum(cost.executed.values()):,} | {sum(cost.state.values()):,} |")
    return "\n".join(
        [
            f"**Cost** of one head with key_dim {key_dim} and value_dim {VALUE_DIM} over n tokens, not causal: "
            f"`{terms}` multiplications.",
            "",
            "| tokens | multiplications needed, all pairs | executed by the causal form | bytes of state after them |",
            "|---|---|---|---|",
            *rows,
        ]
    )


def _scheme_picture(name: str) -> str:
    """Draw softmax weights among equal tokens, so that only positions differ."""
    torch.manual_seed(0)
    positions, x = torch.arange(16), torch.ones(1, 1, 16, 64)
    scheme = schemes[name].from_sizes(Sizes(dim=64, heads=1, key_dim=64, length=16, bidirectional=False))
    with torch.no_grad():
        weights = _softmax_weights(scheme, x, positions)
    note = "untrained" if list(scheme.parameters()) else "nothing to learn"
    panel = Panel(name, weights.tolist(), note)
    return heatmaps([panel], [str(position) for position in range(16)], "Attention among equal tokens, by position")


def _softmax_weights(scheme: Positions, x: Tensor, positions: Tensor) -> Tensor:
    softmax, role = Softmax(), scheme.role_for(Softmax.accepts)
    if role == "input":
        x = scheme(torch.zeros_like(x[:, 0]), positions)[:, None] * 3
        return softmax.weights(x, x, causal=True)[0, 0]
    if role == "rotation":
        x = scheme.rotate(x, positions)
        return softmax.weights(x, x, causal=True)[0, 0]
    return softmax.weights(x, x, causal=True, bias=scheme.bias(x, positions, positions))[0, 0]


def _scheme_cost(name: str) -> str:
    scheme = schemes[name].from_sizes(SIZES)
    parameters = sum(weight.numel() for weight in scheme.parameters())
    fits = ", ".join(f"`{kind}`" for kind in sorted(kinds) if scheme.serves(kinds[kind].accepts))
    with torch.no_grad(), count_multiplications() as counted:
        _apply(scheme)
    shared = "per model" if "input" in scheme.gives else "per layer"
    return (
        f"**Cost** in a model with dim {SIZES.dim} and {SIZES.heads} heads: {parameters:,} parameters {shared}, and "
        f"{counted.total:,} multiplications in matrix products for 64 tokens. **Fits** {fits}."
    )


def _apply(scheme: Positions) -> None:
    positions = torch.arange(64)
    if "input" in scheme.gives:
        scheme(torch.zeros(1, 64, SIZES.dim), positions)
        return
    heads = MultiHead(SIZES.dim, SIZES.heads, Softmax(), scheme)
    q = torch.zeros(1, heads.heads, 64, heads.key_dim)
    if heads.position_role == "rotation":
        scheme.rotate(q, positions)
    else:
        scheme.bias(q, positions, positions)
