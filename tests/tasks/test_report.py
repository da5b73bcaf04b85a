import pytest

from qkv.tasks.report import trained_with


@pytest.mark.parametrize(
    ("smoothing", "teachers", "expected"),
    [
        (0.0, "", ""),
        (0.1, "", "label smoothing 0.1"),
        (0.0, "runs/a,runs/b", "teachers"),
        (0.25, "runs/a", "label smoothing 0.25 and teachers"),
    ],
)
def test_what_sets_the_training_loss_apart(smoothing, teachers, expected):
    assert trained_with(smoothing, teachers) == expected
