"""Small models, random requests, and what each should give: the stream of its prompt alone."""

import random

import torch

from qkv.decode import SearchLimits, argmax_token, sampler, stream
from qkv.inference.batching import Generation
from qkv.models import Decoder, DecoderConfig

TOKENS = 29
LONGEST = 47


def small(attention="taylor", positions="rope", dtype=torch.float64, model=Decoder, **options):
    """A decoder with random weights that sometimes ends a text."""
    torch.manual_seed(0)
    sizes = {"dim": 24, "heads": 3, "key_dim": 8, "hidden_dim": 37, "layers": 2, "max_length": LONGEST}
    config = DecoderConfig(**{**sizes, "attention": attention, "positions": positions, **options})
    return model(config, TOKENS).to(dtype).eval()


class Request:
    """A generation that records what it is given."""

    def __init__(self, prompt, tokens, choose=argmax_token, on_token=None, forbidden=(0, 1), end=2):
        self.tokens, self.log_probabilities, self.ends = [], [], []
        self.act = on_token
        limits = SearchLimits(tokens, start=prompt[-1], end=end, forbidden=forbidden)
        self.generation = Generation(prompt, limits, choose, self._record, self.ends.append)

    def _record(self, token, log_probability):
        self.tokens.append(token)
        self.log_probabilities.append(log_probability)
        if self.act is not None:
            self.act(self)

    @property
    def end(self):
        """How it ended; it ended once."""
        (reason,) = self.ends
        return reason

    def alone(self, model):
        """Tokens and log-probabilities of `stream`."""
        given = self.generation
        inputs = torch.tensor([list(given.prompt[:-1])], dtype=torch.int64)
        found = list(stream(model, inputs, given.limits, given.choose))
        return [token for token, _ in found], [value for _, value in found]

    def natural_end(self):
        """How it ends if nobody stops it."""
        return "stop" if self.tokens[-1] == self.generation.limits.end else "length"


def chooser(draw, number):
    """Greedy, or sampling with one of a few options and a seed of its own."""
    options = [{}, {"temperature": 2.0}, {"temperature": 2.0, "top_k": 7}, {"temperature": 3.0, "top_p": 0.9}]
    return argmax_token if draw.random() < 0.3 else sampler(seed=number, **draw.choice(options))


def random_request(draw, number, longest=LONGEST):
    """A request of random length that the model has room for."""
    length = draw.randint(1, draw.choice([8, longest - 5]))  # short ones are processed together
    prompt = [draw.randrange(3, TOKENS) for _ in range(length)]
    tokens = draw.randint(1, longest - len(prompt) + 1)
    forbidden = draw.choice([(0, 1), (0, 1), (0, 1, 5)])
    return Request(prompt, tokens, chooser(draw, number), forbidden=forbidden)


def run(batcher, check=lambda: None):
    """Step until nothing is left."""
    for _ in range(10_000):
        check()
        if not batcher.step():
            return
    raise AssertionError("the batcher never became idle")


def random_traffic(seed, count, cancel=0.0, longest=LONGEST):
    """Requests in the order of their rounds: [(round, request, tokens before it is canceled or None)]."""
    draw = random.Random(seed)
    plan, number_of_round = [], 0
    for number in range(count):
        number_of_round += draw.choice([0, 0, 1, 5])
        canceled = draw.choice([-1, 0, 1, 3]) if draw.random() < cancel else None
        plan.append((number_of_round, random_request(draw, number, longest), canceled))
    return plan
