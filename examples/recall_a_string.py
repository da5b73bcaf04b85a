"""A small model from scratch: train a tiny decoder to recite a sentence, then generate it token by token.

    python examples/recall_a_string.py taylor

The same code trains any attention kind. Training processes all tokens at once (`forward`). Generation
processes one at a time with a state (`step`), which never grows for the linear kinds.
"""

import sys
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.attention import build
from qkv.layers import DecoderBlock, FeedForward, HeadsState, MultiHead, PreNorm, ShortConvolution
from qkv.positions import Rope, Sinusoidal

TEXT = "attention is a weighted mean of values."
ALPHABET = sorted(set(TEXT))


class Reciter(nn.Module):
    """A decoder of characters: predicts the next one."""

    def __init__(self, kind: str, dim: int = 32, layers: int = 2):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), dim)
        self.positions = Sinusoidal(dim)
        self.blocks = nn.ModuleList(self._block(kind, dim) for _ in range(layers))
        self.predict = nn.Linear(dim, len(ALPHABET))

    @staticmethod
    def _block(kind: str, dim: int) -> DecoderBlock:
        attention = build(kind)
        heads = MultiHead(
            dim,
            4,
            attention,
            Rope() if Rope.serves(attention.accepts) else None,
            convolution=ShortConvolution(dim),
            output_norm=nn.RMSNorm(dim // 4),
        )
        return DecoderBlock(heads, FeedForward(dim, 2 * dim), partial(PreNorm, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of all tokens at once."""
        x = self.positions(self.embed(tokens), torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.predict(x)

    def start(self) -> list[HeadsState]:
        """Return the state before the first token."""
        return [block.start(1) for block in self.blocks]

    def step(self, token: Tensor, states: list[HeadsState]) -> tuple[Tensor, list[HeadsState]]:
        """Return the logits after one more token, and the new state."""
        x = self.positions(self.embed(token), torch.tensor([states[0].length]))
        following = []
        for block, state in zip(self.blocks, states, strict=True):
            x, after = block.step(x, state)
            following.append(after)
        return self.predict(x), following


def train(kind: str, steps: int = 150) -> Reciter:
    """Train on the sentence."""
    torch.manual_seed(0)
    model = Reciter(kind)
    tokens = torch.tensor([[ALPHABET.index(letter) for letter in TEXT]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.inference_mode()
def recite(model: Reciter, first: str, length: int) -> tuple[str, int]:
    """Return the generated text, starting with `first`, and the bytes of the state."""
    states, text = model.start(), first
    for _ in range(length - 1):
        logits, states = model.step(torch.tensor([[ALPHABET.index(text[-1])]]), states)
        text += ALPHABET[int(logits.argmax())]
    return text, sum(state.bytes for state in states)


if __name__ == "__main__":
    for kind in sys.argv[1:] or ["softmax", "taylor", "linear"]:
        text, size = recite(train(kind), TEXT[0], len(TEXT))
        print(f"{kind:8} {size:7,} bytes of state   {text}")
