import math
from dataclasses import fields, replace

import pytest

from qkv.train import Settings, cosine_schedule, linear_schedule


def rate(step, **values):
    return cosine_schedule(Settings(**{"steps": 210, "warmup": 10, "learning_rate": 2.0, **values}), step)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.2),
        (4, 1.0),
        (9, 2.0),
        (10, 2.0),
        (60, 1 + math.sqrt(0.5)),
        (110, 1.0),
        (160, 1 - math.sqrt(0.5)),
        (210, 0),
    ],
)
def test_learning_rate_by_hand(step, expected):
    """Up to 2 in 10 steps, then half a cosine over 200: cos 0, 45, 90, 135 and 180 degrees."""
    assert rate(step) == pytest.approx(expected, abs=1e-12)


def test_learning_rate_without_warmup_and_beyond_the_end():
    assert rate(0, warmup=0) == 2.0
    assert rate(105, warmup=0) == pytest.approx(1.0)
    assert rate(10**6) == 0
    assert rate(3, warmup=10, steps=5) == pytest.approx(0.8)
    assert rate(10, warmup=10, steps=10) == 2.0


def test_linear_rate_by_hand():
    """Up to 2 in 10 steps, then a line over 200; with minutes it is level until the steps are known."""
    settings = Settings(steps=210, warmup=10, learning_rate=2.0)
    assert [linear_schedule(settings, step) for step in (0, 9, 10, 60, 110, 210, 999)] == [
        0.2,
        2.0,
        2.0,
        1.5,
        1.0,
        0,
        0,
    ]
    known = replace(settings, minutes=1.0, steps=240)
    assert [linear_schedule(known, step) for step in (39, 40, 140)] == [2.0, 2.0, 1.0]


def test_with_minutes_no_rate_depends_on_steps_before_they_are_known():
    """Steps 10 to 39 are measured; the fall is from 40 on."""
    measuring = Settings(minutes=1, warmup=10, learning_rate=2.0)
    known = replace(measuring, steps=240)
    assert [cosine_schedule(measuring, step) for step in range(40)] == [
        cosine_schedule(known, step) for step in range(40)
    ]
    assert [cosine_schedule(known, step) for step in (9, 10, 39, 40, 140)] == pytest.approx([2.0, 2.0, 2.0, 2.0, 1.0])
    late = replace(known, warmup=100)
    assert [cosine_schedule(late, step) for step in (99, 100, 170)] == pytest.approx([2.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": None}, "give steps or minutes"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"accumulation_steps": 0}, "accumulation_steps must be at least 1, got 0"),
        ({"validate_every": -3}, "validate_every must be at least 1, got -3"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"patience": -1}, "patience must be at least 0, got -1"),
        ({"optimizer": "sdg"}, "unknown optimizer 'sdg'; did you mean 'sgd'"),
        ({"dtype": "float16"}, "unknown dtype 'float16'; did you mean 'bfloat16'"),
        ({"minutes": 0}, "minutes must be more than 0, got 0"),
        ({"minutes": math.nan}, "minutes must be more than 0, got nan"),
        ({"learning_rate": -1e-3}, "learning_rate must be more than 0, got -0.001"),
        ({"max_grad_norm": math.inf}, "max_grad_norm must be more than 0, got inf"),
        ({"weight_decay": -0.1}, "weight_decay must be 0 or more, got -0.1"),
        ({"ema_decay": 1.0}, "ema_decay must be at least 0 and below 1, got 1.0"),
        ({"label_smoothing": -0.1}, "label_smoothing must be at least 0 and below 1, got -0.1"),
    ],
)
def test_settings_that_make_no_sense(values, message):
    with pytest.raises(ValueError, match=message):
        Settings(**{"steps": 10, **values})


def test_at_most_sixteen_settings():
    assert len(fields(Settings)) == 16
