"""A tiny decoder on meta whose every count can be written down by hand."""

import torch

from qkv.cost import Input
from qkv.models import family
from qkv.profile.plan.request import make_step
from qkv.profile.spec import ProfileTarget
from qkv.train import Settings
from qkv.train.parallel.mesh import Mesh

TOKENS, DIM, HEADS, HIDDEN, LAYERS = 11, 6, 3, 10, 2
EMBEDDING = TOKENS * DIM
ATTENTION = 4 * (DIM * DIM + DIM)
FEED_FORWARD = DIM * HIDDEN + HIDDEN + HIDDEN * DIM + DIM
BLOCK = ATTENTION + FEED_FORWARD + 4 * DIM  # and two norms
REST = EMBEDDING + 2 * DIM  # the output layer is tied, and there is a last norm
PARAMETERS = REST + LAYERS * BLOCK


def target(attention="softmax", settings=None, device="meta", **changes):
    sizes = {"dim": DIM, "heads": HEADS, "hidden_dim": HIDDEN, "layers": LAYERS, "max_length": 8192}
    chosen = family("decoder")
    with torch.device(device):
        model = chosen.build(chosen.configure({**sizes, "attention": attention, **changes}), TOKENS)
    return ProfileTarget("tiny", model, (Input.parse("int[1,n]"),), max_tokens=8192, settings=settings)


def step(mesh=Mesh(), *, length=8, attention="softmax", settings=None, changes=None, **options):  # noqa: B008 - frozen
    options.setdefault("precision", "float32")
    return make_step(target(attention, settings, **(changes or {})), mesh, sizes={"n": length}, **options)


def accumulating(steps):
    return Settings(steps=1, accumulation_steps=steps)
