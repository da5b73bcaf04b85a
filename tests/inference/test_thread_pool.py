import signal
import threading
import time

import pytest
import torch

from qkv.inference.progress import on_progress
from qkv.inference.thread_pool import map_threads


@pytest.fixture(autouse=True)
def three_threads():
    """Neither one nor, most likely, what the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    kept = torch.get_num_threads()
    torch.set_num_threads(before)
    assert kept == 3


@pytest.mark.parametrize("threads", [1, 2, 5, 11])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_results_are_in_order(threads, count):
    assert map_threads(lambda part: part**2, range(count), threads) == [0, 1, 4, 9, 16, 25, 36][:count]


def test_parts_run_at_once_each_with_one_thread_of_torch_s():
    meeting = threading.Barrier(2)

    def work(part):
        meeting.wait(timeout=60)  # raises if the other never comes
        return threading.get_ident(), torch.get_num_threads()

    (first, one), (second, another) = map_threads(work, ["a", "b"], 2)
    assert len({first, second, threading.get_ident()}) == 3
    assert one == another == 1


def test_a_thread_begun_afterwards_has_as_many_as_before():
    map_threads(str, range(4), 2)
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [3]


@pytest.mark.parametrize(("threads", "parts"), [(1, 5), (2, 1)])
def test_one_thread_is_that_of_the_caller(threads, parts):
    def work(part):
        return threading.get_ident(), torch.get_num_threads()

    assert map_threads(work, range(parts), threads) == [(threading.get_ident(), 1)] * parts


def fail(main):
    raise ValueError("part 19 is broken")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("stop", "expected"),
    [(fail, ValueError), (lambda main: signal.pthread_kill(main, signal.SIGINT), KeyboardInterrupt)],
)
def test_an_error_and_an_interrupt_come_through_and_nothing_more_is_begun(stop, expected, threads):
    main, begun, first = threading.get_ident(), [], (0, 19)[threads - 1]
    before = set(threading.enumerate())

    def work(part):
        begun.append(part)
        time.sleep(0.1)
        if part == first:  # once: a second interrupt could come when the test is over
            stop(main)

    with pytest.raises(expected):
        map_threads(work, range(20), threads)
    assert 1 <= len(begun) < 20
    assert first in begun[:threads], "of several threads the last part is begun first"
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_are_reported(threads):
    reports = []
    with on_progress(lambda done, total: reports.append((done, total))):
        map_threads(str, [1, 2, 3], threads)
    assert reports == [(1, 3), (2, 3), (3, 3)]
