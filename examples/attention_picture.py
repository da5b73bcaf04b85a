"""Draw the attention matrix of each kind on one sentence: `python examples/attention_picture.py out.svg`.

No model is trained. Every word is a random vector, the same for the same word, and q = k, so a word should
attend to its own earlier occurrences. Softmax does so sharply, the Taylor polynomial almost as sharply, elu
hardly; the plain dot product gives negative weights. The linear kinds never build these matrices when they
run: `weights` computes the matrix that their fast form implies.
"""

import sys
from pathlib import Path

import torch

import qkv
from qkv.draw import Panel, heatmaps

SENTENCE = ["the", "cat", "saw", "the", "dog", "and", "the", "dog", "saw", "the", "cat"]
KINDS = {
    "softmax": {"kind": "softmax"},
    "taylor, order 4": {"kind": "taylor", "order": 4},
    "taylor, order 2": {"kind": "taylor", "order": 2},
    "elu": {"kind": "elu"},
    "linear": {"kind": "linear"},
}


def word_vectors(words: list[str], key_dim: int = 16) -> torch.Tensor:
    """Return one random vector per distinct word, (1, 1, time, key_dim)."""
    vocabulary = sorted(set(words))
    table = 1.3 * torch.randn(len(vocabulary), key_dim, generator=torch.Generator().manual_seed(0))
    return table[[vocabulary.index(word) for word in words]][None, None]


def picture() -> str:
    """Return the picture as SVG."""
    x = word_vectors(SENTENCE)
    panels = []
    for title, options in KINDS.items():
        weights = qkv.weights(x, x, causal=True, **options)[0, 0]  # type: ignore[arg-type]
        sums = weights.sum(-1)
        note = "rows sum to 1" if torch.allclose(sums, torch.ones_like(sums)) else "rows have any sum"
        panels.append(Panel(title, weights.tolist(), note))
    return heatmaps(panels, SENTENCE, "Attention weights by kind: rows attend to columns, causal")


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "attention.svg")
    out.write_text(picture(), encoding="utf-8")
    print(f"wrote {out}: the attention matrix of {len(KINDS)} kinds on one sentence")
