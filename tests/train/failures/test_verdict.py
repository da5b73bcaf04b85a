"""Who is hung and who is slow, from beats that are written down by hand."""

from dataclasses import replace

import pytest

from qkv.train.failures.verdict import Beat, Observer, Straggler, find_stragglers

USUAL = Beat(
    number=1,
    ticks=7,
    arrivals=3,
    waits=False,
    step=11,
    activity="a step",
    limit=40.0,
    place="model.py:5 in forward",
    own_seconds=None,
    step_seconds=None,
)
WAITING = replace(USUAL, arrivals=4, waits=True, place="distributed.py:9 in sum")


def look_every_second(seconds, beats):
    """An observer that sees beats whose number goes up, but nothing else of them."""
    observer = Observer()
    for now in range(seconds + 1):
        observer.look(float(now), {rank: replace(beat, number=now) for rank, beat in beats.items()})
    return observer


def test_the_one_that_does_not_wait_is_hung():
    observer = look_every_second(41, {0: WAITING, 1: USUAL, 2: WAITING})
    found = observer.find_hung(41.0)
    assert found == (1, 11, "no progress for 41 s in a step, at model.py:5 in forward")


def test_at_its_limit_it_is_not_yet_hung():
    assert look_every_second(40, {0: WAITING, 1: USUAL}).find_hung(40.0) is None


def test_a_validation_has_a_limit_of_its_own():
    """Rank 0 validates for long; that the other has waited for longer than a step may take is no failure."""
    observer = look_every_second(90, {0: replace(USUAL, limit=300.0, activity="validation"), 1: WAITING})
    assert observer.find_hung(90.0) is None


def test_of_two_that_compute_the_one_behind_is_hung():
    found = look_every_second(50, {0: replace(USUAL, arrivals=4), 1: USUAL}).find_hung(50.0)
    assert found.rank == 1


def test_if_all_wait_for_the_same_nobody_is_named():
    found = look_every_second(45, {0: WAITING, 1: WAITING}).find_hung(45.0)
    assert found.rank == -1
    assert found.cause == "no process made progress for 45 s in a step: all wait, rank 0 at distributed.py:9 in sum"


def test_if_all_wait_the_one_that_reached_fewer_calls_is_hung():
    assert look_every_second(45, {0: WAITING, 1: replace(WAITING, arrivals=3)}).find_hung(45.0).rank == 1


def test_progress_counts_from_its_last_sign():
    observer = look_every_second(30, {0: WAITING, 1: USUAL})
    observer.look(31.0, {1: replace(USUAL, number=31, ticks=8)})
    assert observer.find_hung(70.0) is None


def test_one_that_has_ended_is_neither_hung_nor_silent():
    observer = look_every_second(60, {0: replace(USUAL, ended=True)})
    assert observer.find_hung(60.0) is None
    assert observer.find_silent(600.0, 5) is None


def test_silence_counts_from_the_last_beat():
    observer = look_every_second(3, {0: WAITING, 1: USUAL})
    observer.look(7.5, {0: replace(WAITING, number=8), 1: replace(USUAL, number=3)})
    assert observer.find_silent(7.5, 4.5) is None
    found = observer.find_silent(7.6, 4.5)
    assert (found.rank, found.cause) == (1, "no answer for 5 s: the process is stopped, or blocked in native code")


def test_an_observer_that_slept_blames_nobody():
    """Ctrl-Z stops all processes: when they go on, each has missed as much as the others."""
    observer = look_every_second(3, {0: WAITING, 1: USUAL})
    observer.look(1000.0, {0: WAITING, 1: USUAL})
    assert observer.find_silent(1001.0, 5) is None
    assert observer.find_hung(1001.0) is None


def timed(**seconds):
    return {rank: replace(USUAL, own_seconds=own, step_seconds=1.0) for rank, own in enumerate(seconds.values())}


@pytest.mark.parametrize(
    ("own", "slow"),
    [
        ((0.2, 0.41), [Straggler(1, 0.41, 0.2)]),
        ((0.2, 0.39), []),
        ((0.41, 0.2), [Straggler(0, 0.41, 0.2)]),
        ((0.2, 0.3, 0.4, 0.7), [Straggler(3, 0.7, 0.3)]),
        ((0.03, 0.12), []),  # four times as long, but less than a tenth of a step of one second
        ((0.2, None), []),
    ],
)
def test_a_straggler_takes_twice_the_median_of_the_others(own, slow):
    assert find_stragglers(timed(**{str(rank): seconds for rank, seconds in enumerate(own)})) == slow


def test_milliseconds_make_no_straggler():
    beats = {rank: replace(USUAL, own_seconds=own, step_seconds=0.01) for rank, own in ((0, 0.004), (1, 0.001))}
    assert find_stragglers(beats) == []
