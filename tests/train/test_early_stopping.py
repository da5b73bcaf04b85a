"""Training ends after `patience` validations without a lower score, however often it was interrupted."""

from dataclasses import replace

import pytest

from tests.train.job import events, losses, outcome, settings_of, task_of
from tests.train.loops import loop_in, resumed, stop_at

SCORES = {5: 3.0, 10: 2.0, 15: 2.5, 20: 1.0, 25: 1.0, 30: 4.0, 35: 0.5}
"""Step -> validation score. The lowest before two in a row without improvement is that of step 20."""


def scripted(values, loop_of):
    """The job with these scores."""
    job = task_of(settings_of(**values))
    return replace(job, validate=lambda model, may_stop: SCORES[loop_of[0].progress.step])


def start(folder, make=loop_in, **values):
    holder = []
    holder.append(make(folder, task=scripted(values, holder), **values))
    return holder[0]


VALUES = {"steps": 35, "validate_every": 5}


@pytest.mark.parametrize(("patience", "last", "best"), [(0, 35, 35), (1, 15, 10), (2, 30, 20), (3, 35, 35)])
def test_the_last_step_by_hand(tmp_path, patience, last, best):
    progress = start(tmp_path / "run", **VALUES, patience=patience).train()
    assert (progress.step, progress.best_step) == (last, best)
    assert losses(tmp_path / "run")[-1][0] == last
    stops = [line["step"] for line in events(tmp_path / "run", "validated") if line.get("stops")]
    assert stops == ([last] if patience in (1, 2) else [])


@pytest.mark.parametrize("moment", [3, 20, 25, 27, 29])
def test_an_interrupted_run_stops_at_the_same_step_with_the_same_weights(tmp_path, moment):
    values = {**VALUES, "patience": 2}
    start(tmp_path / "alone", **values).train()
    stop_at(moment, start(tmp_path / "run", **values))
    start(tmp_path / "run", resumed, **values).train()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "alone")


def test_a_run_that_stopped_early_takes_no_more_steps(tmp_path):
    values = {**VALUES, "patience": 2}
    start(tmp_path / "run", **values).train()
    before = outcome(tmp_path / "run")
    assert start(tmp_path / "run", resumed, **values).train().step == 30
    assert outcome(tmp_path / "run") == before
