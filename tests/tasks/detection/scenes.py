"""Settings with which the task `detect` takes a moment."""

import warnings
from functools import cache

from qkv.errors import QkvWarning
from qkv.models import family
from qkv.tasks import DetectTask

TINY = {"size": 32, "train_scenes": 8, "valid_scenes": 3, "test_scenes": 3}


@cache
def tiny_task(**options):
    return DetectTask.load({**TINY, **options})


def tiny_model(name, task, **settings):
    chosen = family(name)
    model = chosen.build(chosen.configure({"hidden_dim": 8, "samples": 8, "pool": 3, **settings}), *task.sizes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QkvWarning)  # the anchors are printed
        task.init_weights(model)
    return model
