"""A language of known entropy: each token depends on the two before it, by a random table.

    excess = mean of log p(token | two before it) - log model(token | all before it), in nats: 0 is perfect

A model has to find "the token before the last" at any position, which is what position schemes are for.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.random import generator
from qkv.train import Objective, Settings


@dataclass(frozen=True)
class MarkovChain:
    """A Markov chain of order 2 over `tokens` tokens."""

    tokens: int = 8
    concentration: float = 0.3
    """Parameter of the Dirichlet distribution of each row of the table; lower is more certain."""
    seed: int = 0

    def table(self) -> Tensor:
        """Return p(next | two before): (tokens, tokens, tokens), float64."""
        shape = torch.full((self.tokens,) * 3, self.concentration, dtype=torch.float64)
        # a Dirichlet draw is a row of gamma draws, divided by its sum
        drawn = torch._standard_gamma(shape, generator(self.seed, "table"))
        return drawn / drawn.sum(-1, keepdim=True)

    def sample(self, rows: int, length: int, purpose: str) -> Tensor:
        """Return sequences (rows, length); the first two tokens are uniform."""
        random, table = generator(self.seed, purpose, length), self.table()
        found = list(torch.randint(self.tokens, (2, rows), generator=random))
        while len(found) < length:
            found.append(torch.multinomial(table[found[-2], found[-1]], 1, generator=random)[:, 0])
        return torch.stack(found[:length], 1)

    def objective(self, model: nn.Module, settings: Settings, length: int = 32, rows: int = 2048) -> Objective:
        """Return the objective of predicting every token of `rows` sequences; validation is the excess on others."""
        train = self.sample(rows, length, "train")

        def order(step: int) -> list[int]:
            random = generator(settings.seed, "order", step)
            return torch.randint(rows, (settings.batch_size,), generator=random).tolist()

        def loss(model: nn.Module, tensors: tuple[Tensor, ...]) -> Tensor:
            (x,) = tensors
            return functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), reduction="sum")

        return Objective(
            model=model,
            order=order,
            collate=lambda ids: (train[ids],),
            count=lambda tensors: tensors[0][:, 1:].numel(),
            loss=loss,
            validate=lambda model, may_stop: self.excess_loss(model, length),
        )

    @torch.no_grad()
    def excess_loss(self, model: nn.Module, length: int, rows: int = 64, last: int = 16) -> float:
        """Return the loss above the entropy, in nats per token, on the `last` tokens of sequences of this length."""
        x = self.sample(rows, length, "test")
        predicted = model(x[:, :-1]).double().log_softmax(-1)[:, 1:].gather(-1, x[:, 2:, None])
        true = self.table()[x[:, :-2], x[:, 1:-1]].log().gather(-1, x[:, 2:, None])
        return float((true - predicted)[:, -last:].mean())
