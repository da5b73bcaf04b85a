import random
import threading

import pytest
import torch

from qkv.decode import SearchLimits, sampler
from qkv.inference.batching import Batcher, Generation, Limits, QueueFullError
from qkv.inference.prefix_cache import PrefixCache
from qkv.models import Decoder
from tests.inference.batching.requests import LONGEST, TOKENS, Request, random_request, random_traffic, run, small

KINDS = [
    ("taylor", "rope", 3),
    ("taylor+forget", "none", 0),
    ("linear", "alibi", 0),
    ("linear+channel", "learned", 0),
    ("elu", "sinusoidal", 0),
    ("delta", "rope", 0),
    ("delta+forget+write+convolution+output", "none", 0),
    ("softmax", "rope", 3),
    ("softmax", "learned", 0),
    ("softmax+forget", "none", 0),
    ("softmax(window=5)", "t5", 0),
    ("softmax", "shaw", 0),
    ("additive", "alibi", 0),
    ("linear,softmax", "alibi", 0),
]
UNLIKELY_END = {"end": 0, "forbidden": (1, 2)}
"""An end that these models and requests do not reach."""
LIMITS = Limits(max_rows=5, max_waiting=50, piece=17)


def play(batcher, plan):
    """Submit and cancel as planned, step in between, and check the bounds after every round."""
    held = [batcher.statistics()]
    waiting = sorted(plan, key=lambda item: item[0])
    for now in range(10_000):
        for _, request, canceled in waiting:
            if canceled is not None and len(request.tokens) >= canceled:
                request.generation.cancel()
        while plan and plan[0][0] <= now:
            batcher.submit(plan.pop(0)[1].generation)
        going = batcher.step()
        held.append(batcher.statistics())
        if not going and not plan:
            return held
    raise AssertionError("the batcher never became idle")


def assert_bounded(held, limits):
    assert max(x.running for x in held) == limits.max_rows  # the traffic fills it
    assert max(x.waiting for x in held) <= limits.max_waiting
    assert all(x.state_bytes <= x.reserved_bytes <= limits.max_state_bytes for x in held)
    assert (held[-1].waiting, held[-1].running, held[-1].state_bytes, held[-1].reserved_bytes) == (0, 0, 0, 0)


def assert_alone(model, request, tolerance):
    """A request gives what it gives alone, or the beginning of it if it was stopped."""
    tokens, values = request.alone(model)
    assert request.tokens == tokens[: len(request.tokens)]
    assert request.log_probabilities == pytest.approx(values[: len(request.tokens)], rel=0, abs=tolerance)


@pytest.mark.parametrize(("attention", "positions", "convolution"), KINDS)
def test_each_request_gives_what_it_gives_alone(attention, positions, convolution):
    """Rows enter and leave at random, in any company."""
    model = small(attention, positions, convolution=convolution)
    batcher, plan = Batcher(model, LIMITS), random_traffic(0, 17)
    requests = [request for _, request, _ in plan]
    assert_bounded(play(batcher, plan), LIMITS)
    for request in requests:
        assert_alone(model, request, 1e-12)
        assert request.end == request.natural_end()
        assert len(request.tokens) == len(request.alone(model)[0])


@pytest.mark.parametrize("attention", ["taylor", "delta", "softmax"])
def test_single_precision(attention):
    model = small(attention, dtype=torch.float32)
    batcher, plan = Batcher(model, LIMITS), random_traffic(1, 17)
    requests = [request for _, request, _ in plan]
    play(batcher, plan)
    for request in requests:
        assert_alone(model, request, 1e-5)
        assert request.end == request.natural_end()


@pytest.mark.parametrize("attention", ["taylor", "softmax"])
def test_requests_that_are_canceled(attention):
    """Before they are submitted, while they wait, after some tokens: the others notice nothing."""
    model = small(attention)
    batcher, plan = Batcher(model, LIMITS), random_traffic(2, 31, cancel=0.6)
    requests = [request for _, request, _ in plan]
    planned = [canceled for _, _, canceled in plan]
    assert_bounded(play(batcher, plan), LIMITS)
    ends = [request.end for request in requests]
    for request, canceled, end in zip(requests, planned, ends, strict=True):
        assert_alone(model, request, 1e-12)
        natural = end == "canceled" or end == request.natural_end()
        assert natural
        assert canceled is not None or end != "canceled"
    counted = batcher.statistics().ended
    assert counted == {reason: ends.count(reason) for reason in set(ends)}
    assert ends.count("canceled") > 9


def test_a_request_is_canceled_while_its_prompt_is_processed():
    batcher = Batcher(small(), Limits(piece=3))
    request = Request([5] * 30, 2)
    batcher.submit(request.generation)
    assert batcher.step()
    assert batcher.statistics().state_bytes > 0
    request.generation.cancel()
    assert not batcher.step()
    assert (request.end, request.tokens, batcher.statistics().state_bytes) == ("canceled", [], 0)


def test_the_bound_of_bytes():
    """As many rows as fit, however many may run; the first in the queue is never overtaken."""
    model = small("softmax")
    room = Batcher(model, Limits())._sizes.bytes_for(LONGEST)
    limits = Limits(max_rows=3, max_state_bytes=3 * room + room // 2, piece=50)
    batcher, requests = Batcher(model, Limits(50, max_state_bytes=limits.max_state_bytes, piece=50)), []
    for number in range(10):
        requests.append(Request([5 + number] * (LONGEST - 3), 4, sampler(seed=number)))
        batcher.submit(requests[-1].generation)
    held = []
    run(batcher, lambda: held.append(batcher.statistics()))
    assert_bounded([*held, batcher.statistics()], limits)
    for request in requests:
        assert_alone(model, request, 1e-12)
        assert request.end == request.natural_end()


def test_places_of_rows_that_left_do_not_count():
    """A row ends at the model's longest sequence; those that run on with it have their own lengths."""
    for attention in ("taylor", "softmax"):
        model = small(attention)
        batcher = Batcher(model, Limits(max_rows=20, piece=LONGEST))
        long = Request([7] * (LONGEST - 1), 2, **UNLIKELY_END)
        short = [Request([3 + number], LONGEST, **UNLIKELY_END) for number in range(17)]
        for request in (long, *short):
            batcher.submit(request.generation)
        run(batcher)
        for request in (long, *short):
            assert_alone(model, request, 1e-12)
            assert request.end == "length"


@pytest.mark.parametrize("attention", ["taylor", "delta+forget+write+convolution", "softmax", "linear,softmax"])
@pytest.mark.parametrize("max_bytes", [60_000, 10_000_000])
def test_a_prefix_cache_changes_nothing(attention, max_bytes):
    """With room for all prefixes and for few; prompts share beginnings, and come while others are processed."""
    model, draw = small(attention, "none"), random.Random(5)
    cache = PrefixCache(model, max_bytes, block=4)
    batcher, plan = Batcher(model, LIMITS, cache), []
    shared = [[draw.randrange(3, TOKENS) for _ in range(30)] for _ in range(3)]
    for number in range(25):
        prompt = [*draw.choice(shared)[: draw.randrange(31)], *(draw.randrange(3, TOKENS) for _ in range(5))]
        plan.append((number // 3, Request(prompt, draw.randint(1, 9), sampler(seed=number)), None))
    requests = [request for _, request, _ in plan]
    assert_bounded(play(batcher, plan), LIMITS)
    for request in requests:
        assert_alone(model, request, 1e-12)
        assert request.end == request.natural_end()
    statistics = cache.statistics()
    assert statistics.bytes <= max_bytes
    assert statistics.hits + statistics.misses == sum(len(request.generation.prompt) > 4 for request in requests)
    assert statistics.tokens_reused > 0


def test_what_prompts_share_is_processed_once():
    """The second waits for the first instead of doing the same; known prompts begin in one round, however long."""
    model = small("taylor")
    cache = PrefixCache(model, 10**7, block=4)
    batcher, rounds = Batcher(model, Limits(piece=17), cache), []
    for _ in range(2):
        before = batcher.statistics().rounds
        for last in (6, 7, 8):
            batcher.submit(Request([5] * 40 + [last], 1).generation)
        batcher.submit(Request([9] * 20, 1).generation)
        run(batcher)
        rounds.append(batcher.statistics().rounds - before)
    assert cache.statistics().tokens_prefilled == 40 + 19 + 3  # 3 tokens are less than a block
    assert rounds == [6, 2]


def test_who_waits_for_a_canceled_prompt_goes_on():
    model = small("taylor")
    batcher = Batcher(model, Limits(piece=8), PrefixCache(model, 10**7, block=4))
    first, second = Request([5] * 40, 1), Request([5] * 41, 1)
    for request in (first, second):
        batcher.submit(request.generation)
    batcher.step(), batcher.step()
    first.generation.cancel()
    run(batcher)
    assert first.end == "canceled"
    assert_alone(model, second, 1e-12)
    assert second.end == second.natural_end()


class Placed(Decoder):
    """Notes the highest position of a row, ended ones included."""

    highest = 0

    def _advance(self, tokens, state, mask):
        offsets = state.blocks[0].offsets
        place = state.length + tokens.shape[1] - 1
        self.highest = max(self.highest, place - (0 if offsets is None else int(offsets.min())))
        return super()._advance(tokens, state, mask)


@pytest.mark.parametrize("attention", ["taylor", "softmax"])
def test_no_position_is_beyond_the_longest_sequence(attention):
    """A row that was padded when it entered, and goes on alone, has the positions of its own tokens."""
    model = small(attention, model=Placed)
    batcher = Batcher(model, Limits(max_rows=20, piece=100))
    long, padded = Request([7] * 40, 2, **UNLIKELY_END), Request([8] * 36, LONGEST - 35, **UNLIKELY_END)
    for request in (long, padded, *(Request([9] * number, 5, **UNLIKELY_END) for number in range(1, 10))):
        batcher.submit(request.generation)
    run(batcher)
    assert model.highest == LONGEST - 1
    assert_alone(model, padded, 1e-12)
    assert padded.end == "length"


def test_first_come_first_served():
    batcher, started = Batcher(small(), Limits(max_rows=2, piece=50)), []
    for number in range(7):
        first = [number]
        batcher.submit(
            Request(
                [5] * (3 * (7 - number)), 1 + number % 3, on_token=lambda _, own=first: started.extend(own)
            ).generation
        )
    run(batcher)
    assert list(dict.fromkeys(started)) == list(range(7))


def test_a_long_prompt_does_not_stall_the_others():
    """A running row gets a token in every round; a short prompt overtakes; the long one proceeds in every round."""
    batcher, rounds = Batcher(small(), Limits(piece=4)), [0]
    seen = {"running": [], "long": [], "short": []}

    def request(name, prompt, tokens):
        made = Request(prompt, tokens, on_token=lambda _: seen[name].append(rounds[0]), **UNLIKELY_END)
        batcher.submit(made.generation)

    def count():
        rounds[0] += 1

    request("running", [5], 20)
    count(), batcher.step()
    request("long", [6] * 30, 3)
    request("short", [7] * 5, 3)
    run(batcher, count)
    assert seen["running"] == list(range(1, 21))
    assert seen["short"] == [2, 3, 4]
    assert seen["long"] == [9, 10, 11]  # 29 tokens by 4 in rounds 2 to 9


class Counting(Decoder):
    """Counts the tokens that it processes."""

    processed = 0

    def _advance(self, tokens, state, mask):
        self.processed += tokens.numel()
        return super()._advance(tokens, state, mask)


def test_the_work_of_a_round_is_bounded():
    model = small(model=Counting)
    limits = Limits(max_rows=9, piece=6)
    batcher, draw = Batcher(model, limits), random.Random(3)
    requests = [random_request(draw, number, longest) for longest in (10, LONGEST) for number in range(20)]
    draw.shuffle(requests)
    for request in requests:
        batcher.submit(request.generation)
    before, works = [0], []

    def note():
        works.append(model.processed - before[0])
        before[0] = model.processed

    run(batcher, note)
    note()
    assert max(works) <= 2 * limits.piece + limits.max_rows
    assert sum(works) >= sum(len(request.generation.prompt) - 1 + len(request.tokens) for request in requests)


def test_states_are_rarely_copied():
    """Requests that follow each other take over slots: only the first eight rows and those left last are copied."""
    batcher = Batcher(small(), Limits(max_rows=8, piece=50))
    for number in range(80):
        batcher.submit(Request([5, 6, 7 + number % 7], 1 + number % 11).generation)
    run(batcher)
    statistics = batcher.statistics()
    assert statistics.copied_rows < statistics.tokens / 4


def test_rows_that_end_at_the_longest_sequence_are_not_copied_away():
    """A slot of sums is emptied in place: one of 17 rows after the other ends at the last place."""
    batcher = Batcher(small(), Limits(max_rows=17, piece=LONGEST * 17))
    for number in range(17):
        batcher.submit(Request([5] * (number + 20), LONGEST - number - 19, **UNLIKELY_END).generation)
    run(batcher)
    assert batcher.statistics().copied_rows < 17 * 6


def test_a_growing_state_gets_free_slots():
    """Two rows enter per round; without free slots each round would copy all: 2 + 4 + ... + 64 rows."""
    batcher, reserved = Batcher(small(), Limits(max_rows=64, piece=8)), []
    for number in range(64):
        batcher.submit(Request([5, 6, 7, 8, 3 + number % 20], 35, **UNLIKELY_END).generation)
    run(batcher, lambda: reserved.append(batcher.statistics().reserved_bytes))
    assert batcher.statistics().copied_rows < 800
    assert max(reserved) <= (64 + 64 // 4) * batcher._sizes.bytes_for(LONGEST)


def test_a_full_queue_refuses_at_once():
    batcher = Batcher(small(), Limits(max_rows=1, max_waiting=2))
    accepted = [Request([5], 3), Request([6], 3)]
    for request in accepted:
        batcher.submit(request.generation)
    refused = Request([7], 3)
    with pytest.raises(QueueFullError, match="2 requests wait already") as error:
        batcher.submit(refused.generation)
    assert 1 <= error.value.retry_after <= 60
    assert batcher.step()
    batcher.submit(refused.generation)  # there is room now
    run(batcher)
    assert [request.end for request in (*accepted, refused)] == [x.natural_end() for x in (*accepted, refused)]


def test_draining_finishes_what_was_accepted():
    model = small()
    batcher, draw = Batcher(model, Limits(max_rows=2, piece=3)), random.Random(4)
    requests = [random_request(draw, number) for number in range(7)]
    for request in requests:
        batcher.submit(request.generation)
    batcher.step()
    batcher.drain()
    late = Request([5], 1)
    with pytest.raises(QueueFullError, match="drains"):
        batcher.submit(late.generation)
    run(batcher)
    assert [request.end for request in requests] == [request.natural_end() for request in requests]
    assert late.ends == []


def test_aborting_ends_everything_with_the_reason():
    batcher = Batcher(small(), Limits(max_rows=3, piece=3))
    requests = [Request([5] * length, 9) for length in (2, 3, 30, 4, 5)]
    for request in requests:
        batcher.submit(request.generation)
    batcher.step()
    batcher.abort("the server stops")
    assert [request.end for request in requests] == ["error: the server stops"] * 5
    assert (batcher.is_idle, batcher.statistics().state_bytes, batcher.step()) == (True, 0, False)


class Poisoned(Decoder):
    """Fails on token 27 of a prompt; gives NaN after token 28."""

    def start(self, inputs, mask):
        if (inputs == 27).any():
            raise ArithmeticError("token 27")
        return super().start(inputs, mask)

    def prefill(self, tokens, state):
        if (tokens == 27).any():
            raise ArithmeticError("token 27")
        return super().prefill(tokens, state)

    def step(self, tokens, state):
        logits, state = super().step(tokens, state)
        return logits.masked_fill((tokens == 28)[:, None], float("nan")), state


def fail(_):
    raise OSError("the client went away")


def out_of_range(log_probabilities, sources, position):
    return torch.tensor([TOKENS])


def two_tokens(log_probabilities, sources, position):
    return torch.tensor([3, 4])


@pytest.mark.parametrize("attention", ["taylor", "softmax"])
def test_an_error_ends_its_row_alone(attention):
    model = small(attention, model=Poisoned)
    batcher = Batcher(model, Limits(piece=10))
    broken = {
        "the model returned invalid logits: NaN": Request([5, 28], 4),
        "the model returned invalid logits: NaN,": Request([5, 28], 4, sampler(seed=0)),
        "the model failed on the prompt: ArithmeticError: token 27": Request([5, 27, 6], 4),
        "the model failed on the prompt: ArithmeticError: token": Request([27] * 30, 4),
        "on_token raised OSError: the client went away": Request([5, 6], 4, on_token=fail),
        "choose raised": Request([5, 6, 7], 4, out_of_range),
        "choose raised ValueError: it must return one token per row": Request([5, 6, 7], 4, two_tokens),
    }
    healthy = [
        Request([5 + number] * length, 9, sampler(seed=number), forbidden=(0, 1, 28))
        for number, length in enumerate((1, 4, 8, 25))
    ]
    for pair in zip(broken.values(), (*healthy, *healthy), strict=False):
        for request in pair:
            if not request.generation.submitted:
                batcher.submit(request.generation)
    run(batcher)
    for message, request in broken.items():
        assert request.end.startswith(f"error: {message}")
    for request in healthy:
        assert_alone(model, request, 1e-12)
        assert request.end == request.natural_end()
    assert batcher.statistics().ended["error"] == 7
    assert batcher.statistics().state_bytes == 0


class Failing(Decoder):
    """Fails once, after some layers of a step are done."""

    fails = 3

    def step(self, tokens, state):
        out = super().step(tokens, state)
        self.fails -= 1
        if not self.fails:
            raise MemoryError("no more memory")
        return out


@pytest.mark.parametrize("attention", ["taylor", "softmax"])
def test_an_error_of_the_model_ends_the_rows_of_that_step(attention):
    model = small(attention, model=Failing)
    batcher = Batcher(model, Limits(max_rows=2))
    requests = [Request([5], 9), Request([6], 9), Request([7], 9)]
    for request in requests:
        batcher.submit(request.generation)
    run(batcher)
    assert [request.end for request in requests[:2]] == ["error: the model failed: MemoryError: no more memory"] * 2
    assert [len(request.tokens) for request in requests[:2]] == [2, 2]
    assert requests[2].end == requests[2].natural_end()
    assert_alone(model, requests[2], 1e-12)
    assert batcher.statistics().state_bytes == 0


def test_an_error_of_on_end_is_logged(caplog):
    batcher = Batcher(small(), Limits())
    other = Request([6], 3)
    batcher.submit(Generation([5], SearchLimits(2, start=5), on_end=fail))
    batcher.submit(other.generation)
    run(batcher)
    assert "the client went away" in caplog.text
    assert other.end == other.natural_end()


def test_callbacks_submit_and_cancel_but_do_not_step():
    batcher = Batcher(small(), Limits())
    second, third = Request([6], 2), Request([8], 9)
    stepping = Request([7], 9, on_token=lambda _: batcher.step())
    first = Request([5], 1, on_token=lambda _: (batcher.submit(second.generation), third.generation.cancel()))
    for request in (first, stepping, third):
        batcher.submit(request.generation)
    run(batcher)
    assert second.end == second.natural_end()
    assert (third.end, len(third.tokens)) == ("canceled", 1)
    assert stepping.end.startswith("error: on_token raised RuntimeError: a round is running already")


@pytest.mark.parametrize(
    ("prompt", "limits", "message"),
    [
        ([], SearchLimits(3), "prompt must have at least one token.*got none"),
        ([5], SearchLimits(3, start=6), "limits.start=6 must be the last token of the prompt, 5"),
        (
            [5] * 40,
            SearchLimits(9, start=5),
            f"prompt has 40 tokens, and 9 more exceed the model's max_length={LONGEST}",
        ),
        ([5, TOKENS, 6], SearchLimits(3, start=6), f"tokens of the model, 0 to {TOKENS - 1}, got {TOKENS}"),
        ([5, -1, 6], SearchLimits(3, start=6), "got -1"),
        ([5], SearchLimits(3, start=5, end=TOKENS + 1), f"got {TOKENS + 1}"),
    ],
)
def test_requests_that_can_never_run(prompt, limits, message):
    batcher = Batcher(small(), Limits())
    with pytest.raises(ValueError, match=message):
        batcher.submit(Generation(prompt, limits))
    assert batcher.statistics().waiting == 0


def test_a_state_that_can_never_fit():
    batcher = Batcher(small(), Limits(max_state_bytes=1000))
    with pytest.raises(ValueError, match=r"a state of 3 tokens takes 19,440 bytes.*max_state_bytes=1,000"):
        batcher.submit(Generation([5], SearchLimits(3, start=5)))


def test_a_generation_is_submitted_once():
    batcher, request = Batcher(small(), Limits()), Request([5], 3)
    batcher.submit(request.generation)
    with pytest.raises(ValueError, match="submitted before"):
        batcher.submit(request.generation)


def test_a_model_that_is_no_decoder():
    with pytest.raises(TypeError, match="model must be a decoder, but Linear has no method start"):
        Batcher(torch.nn.Linear(3, 2), Limits())


def test_a_model_in_training():
    with pytest.raises(ValueError, match="model must be in eval mode"):
        Batcher(small().train(), Limits())


def test_waiting_for_work():
    batcher = Batcher(small(), Limits())
    assert not batcher.wait(0)
    thread = threading.Thread(target=lambda: batcher.submit(Request([5], 1).generation))
    thread.start()
    assert batcher.wait(60)
    thread.join()
    run(batcher)
    assert not batcher.wait(0)


@pytest.mark.parametrize("attention", ["delta", "softmax"])
def test_threads_submit_and_cancel_while_another_steps(attention):
    model = small(attention)
    batcher = Batcher(model, Limits(max_rows=6, max_waiting=3, piece=9))
    requests, refused = [[] for _ in range(4)], [0]

    def client(own):
        draw = random.Random(own)
        for number in range(9):
            request = random_request(draw, number, longest=20)
            while True:
                try:
                    batcher.submit(request.generation)
                    break
                except QueueFullError:
                    refused[0] += 1
                    threading.Event().wait(0.001)
            requests[own].append(request)
            if number % 3 == 2:
                requests[own][draw.randrange(number)].generation.cancel()

    clients = [threading.Thread(target=client, args=(own,)) for own in range(4)]
    for thread in clients:
        thread.start()
    while any(thread.is_alive() for thread in clients) or not batcher.is_idle:
        batcher.step()
    everything = [request for own in requests for request in own]
    assert len(everything) == 36
    for request in everything:
        assert_alone(model, request, 1e-12)
        assert request.end in ("stop", "length", "canceled")
        assert request.generation.canceled or request.end == request.natural_end()
    assert sum(batcher.statistics().ended.values()) == 36
    assert batcher.statistics().state_bytes == 0
