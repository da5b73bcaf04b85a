"""Small models to decode from, and slow reference searches."""

import math
from dataclasses import dataclass

import torch
from torch import nn

PAD, START, END, UNKNOWN = range(4)


@dataclass
class Prefixes:
    """State of a table: the source and the tokens so far of each row."""

    rows: list

    def select(self, rows):
        return Prefixes([self.rows[row] for row in rows.tolist()])


class Table:
    """`probabilities(source, prefix) -> {token: probability}`, a source being the first id of its input."""

    def __init__(self, probabilities, vocabulary):
        self.probabilities = probabilities
        self.vocabulary = vocabulary
        self.rows_stepped = []

    def start(self, inputs, mask):
        return Prefixes([(source, None) for source in inputs[:, 0].tolist()])

    def step(self, tokens, state):
        self.rows_stepped.append(len(state.rows))
        rows = [
            (source, () if prefix is None else (*prefix, token))
            for (source, prefix), token in zip(state.rows, tokens.tolist(), strict=True)
        ]
        logits = torch.full((len(rows), self.vocabulary), -math.inf, dtype=torch.float64)
        for row, (source, prefix) in enumerate(rows):
            for token, probability in self.probabilities(source, prefix).items():
                logits[row, token] = math.log(probability)
        return logits, Prefixes(rows)


def random_table(branches, seed):
    """A table over END and `branches - 1` other tokens whose probabilities depend on the source and the prefix."""
    known = {}

    def probabilities(source, prefix):
        key = (source, prefix)
        if key not in known:
            generator = torch.Generator().manual_seed(hash((seed, source, prefix)) % 2**63)
            shares = (2 * torch.randn(branches, generator=generator, dtype=torch.float64)).softmax(0).tolist()
            known[key] = dict(zip(range(END, END + branches), shares, strict=True))
        return known[key]

    return Table(probabilities, END + branches)


def every_path(probabilities, source, max_length, prefix=(), log_probability=0.0):
    """All (path, log-probability) that end with END or are `max_length` long."""
    for token, probability in probabilities(source, prefix).items():
        path, total = (*prefix, token), log_probability + math.log(probability)
        if token == END or len(path) == max_length:
            yield path, total
        else:
            yield from every_path(probabilities, source, max_length, path, total)


def ranked(paths, length_power):
    """[(score, tokens without END, log-probability, finished)], best first."""
    found = [(total / len(path) ** length_power, path, total) for path, total in paths]
    found.sort(key=lambda item: -item[0])
    return [(score, tuple(t for t in path if t != END), total, path[-1] == END) for score, path, total in found]


def slow_beam(probabilities, source, max_length, beams, length_power):
    """A beam search that always runs to `max_length`, without a stopping rule."""
    live, ended = [((), 0.0)], []
    for _ in range(max_length):
        further = [
            ((*path, token), total + math.log(probability))
            for path, total in live
            for token, probability in probabilities(source, path).items()
        ]
        further = sorted(further, key=lambda item: -item[1])[:beams]
        ended += [item for item in further if item[0][-1] == END]
        live = [item for item in further if item[0][-1] != END]
    return ranked(ended + live, length_power)[:beams]


@dataclass(frozen=True)
class Hidden:
    x: torch.Tensor

    def select(self, rows):
        return Hidden(self.x[rows])


class Net(nn.Module):
    """A small random recurrent network: the mean of the input embeddings, then a GRU cell."""

    def __init__(self, vocabulary=23, dim=17):
        super().__init__()
        self.read = nn.Embedding(29, dim)
        self.embed = nn.Embedding(vocabulary, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.output = nn.Linear(dim, vocabulary)
        self.rows_stepped = []
        nn.init.normal_(self.output.weight, std=2)
        nn.init.normal_(self.read.weight, std=2)
        nn.init.constant_(self.output.bias[END], 3)

    def start(self, inputs, mask):
        seen = mask.float()[..., None]
        return Hidden((self.read(inputs) * seen).sum(1) / seen.sum(1))

    def step(self, tokens, state):
        self.rows_stepped.append(len(tokens))
        x = self.cell(self.embed(tokens), state.x)
        return self.output(x), Hidden(x)

    def all_logits(self, inputs, mask, tokens):
        """Return the next-token logits after each of `tokens` (batch, time), in one parallel pass of torch's GRU."""
        gru = nn.GRU(self.cell.input_size, self.cell.hidden_size, batch_first=True)
        gru.load_state_dict({f"{name}_l0": value for name, value in self.cell.state_dict().items()})
        return self.output(gru(self.embed(tokens), self.start(inputs, mask).x[None])[0])


def words(count, longest=11):
    """Random inputs of different lengths, padded, with their mask."""
    lengths = torch.randint(1, longest + 1, (count, 1))
    mask = torch.arange(longest) < lengths
    return torch.randint(4, 29, (count, longest)).masked_fill(~mask, PAD), mask
