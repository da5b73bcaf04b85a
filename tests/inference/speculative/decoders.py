"""Small random decoders of every kind, and drafts of their own."""

from copy import deepcopy

import torch

from qkv.attention import kinds
from qkv.inference.speculative import Draft, Proposal
from qkv.models import Decoder, DecoderConfig

VOCABULARY = 23
KINDS = (*kinds, "softmax(window=3)", "softmax+forget", "delta+forget+write", "2*linear,softmax")
KINDS_AND_CONVOLUTIONS = (*((kind, 0) for kind in KINDS), ("softmax", 3), ("delta", 3), ("2*linear,softmax", 3))


def decoder(attention="softmax", seed=0, **options):
    """A decoder in float64 whose predictions vary from token to token."""
    torch.manual_seed(seed)
    sizes = {"dim": 12, "heads": 2, "hidden_dim": 20, "layers": 3 if "," in attention else 2, "max_length": 53}
    config = DecoderConfig(**{**sizes, "positions": "sinusoidal", "tied": False, "attention": attention, **options})
    model = Decoder(config, VOCABULARY).double().eval()
    with torch.no_grad():
        for weight in (model.embed.weight, model.lm_head.weight):
            weight.normal_(std=0.5)
    return model


def perturbed(model, std):
    """A copy whose weights differ a little, so that it predicts most tokens alike."""
    other = deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(std * torch.randn_like(weight))
    return other


class Hostile(Draft):
    """Proposes, of all tokens, the least probable by a model that knows better."""

    def __init__(self, model):
        self.model = model

    def propose(self, ids, count, pick):
        logits = self.model(torch.tensor([list(ids)]))[0, -1]
        return Proposal([int(logits.argmin())] * count, [None] * count)


class Fixed(Draft):
    """Proposes what was given to it, in turns."""

    def __init__(self, *proposals):
        self.proposals = list(proposals)

    def propose(self, ids, count, pick):
        return self.proposals.pop(0) if self.proposals else Proposal()
