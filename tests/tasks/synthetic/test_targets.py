"""The answers of generated tasks, computed again from the text of each row by plain Python."""

import re
from collections import Counter
from statistics import median

import pytest

from qkv.tasks import tasks
from qkv.tasks.synthetic.base import Condition

COUNT = 40


def load(name, **options):
    return tasks[name].load(options)


def texts(task, condition, split="test", count=COUNT):
    """Yield the tokens of each row by name, and {place: answer by name}."""
    batch = task.examples(split, 3, count, condition)
    for tokens, targets in zip(batch.input_ids.tolist(), batch.target_ids.tolist(), strict=True):
        yield [task.names[t] for t in tokens], {i: task.names[t] for i, t in enumerate(targets) if t != -100}


@pytest.mark.parametrize("length", [1, 2, 7, 41])
def test_parity_counts_ones(length):
    rows = list(texts(load("parity"), Condition(length)))
    assert len(rows) == COUNT
    for tokens, answers in rows:
        assert answers == {i: str(tokens[: i + 1].count("1") % 2) for i in range(length)}


def test_parity_may_ask_after_the_last_token_alone():
    for tokens, answers in texts(load("parity", every=False), Condition(9)):
        assert answers == {8: str(tokens.count("1") % 2)}


@pytest.mark.parametrize("modulus", [2, 5, 7])
@pytest.mark.parametrize("length", [1, 2, 5, 18, 31])
def test_modular_is_what_python_computes(length, modulus):
    for tokens, answers in texts(load("modular", modulus=modulus), Condition(length)):
        assert len(tokens) == length
        numbers = [i for i, token in enumerate(tokens) if token.isdigit()]
        assert numbers == [*range(1 - length % 2, length, 2)]
        assert answers == {i: str(eval("".join(tokens[: i + 1])) % modulus) for i in numbers}


def test_modular_has_all_operators():
    found = Counter(token for tokens, _ in texts(load("modular"), Condition(31)) for token in tokens)
    assert min(found[operator] for operator in "+-*") > 0.8 * COUNT * 5


def test_modular_may_ask_after_the_last_number_alone():
    for tokens, answers in texts(load("modular", every=False), Condition(11)):
        assert answers == {10: str(eval("".join(tokens)) % 5)}


@pytest.mark.parametrize("updates", [0, 1, 13])
def test_overwrite_asks_for_the_last_value(updates):
    task = load("overwrite", keys=11, values=7, pairs=5)
    for tokens, answers in texts(task, Condition(updates)):
        writes = 2 * (5 + updates)
        memory = dict(zip(tokens[0:writes:2], tokens[1:writes:2], strict=True))
        assert len(set(tokens[0:10:2])) == len(memory) == 5
        assert all(token.startswith("v") for token in tokens[1:writes:2])
        assert answers == {i: memory[tokens[i]] for i in range(writes, len(tokens), 2)}
        assert sorted(tokens[writes::2]) == sorted(memory)
        assert set(tokens[writes + 1 :: 2]) == {"."}


@pytest.mark.parametrize("haystack", ["noise", "pairs"])
@pytest.mark.parametrize(("length", "depth", "slot"), [(5, 0.0, 0), (5, 1.0, 1), (24, 0.5, 5), (65, 1.0, 31)])
def test_needle_is_at_its_depth(haystack, length, depth, slot):
    task = load("needle", haystack=haystack, keys=5, values=7, noise=3)
    for tokens, answers in texts(task, Condition(length, depth)):
        place = 2 * slot + (length - 1) % 2
        assert tokens[place] == tokens[-1]
        assert answers == {length - 1: tokens[place + 1]}
        assert tokens[:-1].count(tokens[-1]) == 1  # no distractor has its key
        hay = "".join(token[0] for i, token in enumerate(tokens[:-1]) if i not in (place, place + 1))
        slots = (length - 1) // 2 - 1
        assert hay == ("" if length % 2 else ".") + {"noise": "nn", "pairs": "kv"}[haystack] * slots


def test_needle_of_training_is_anywhere():
    task = load("needle", keys=5, values=7)
    places = {tokens.index(tokens[-1]) // 2 for tokens, _ in texts(task, Condition(9), count=200)}
    assert places == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["copy", "reverse"])
def test_copy_and_reverse(name):
    for tokens, answers in texts(load(name), Condition(6)):
        symbols = tokens[:6]
        expected = {"copy": symbols, "reverse": [*reversed(symbols)]}[name]
        assert tokens[6:] == [">", *expected[:-1]]
        assert [answers[i] for i in range(6, 12)] == expected
        assert len(answers) == 6


def value(text):
    """Compute a ListOps expression from the inside: replace the first list without lists in it by its value."""
    functions = {"MIN": min, "MAX": max, "MED": lambda v: int(median(v)), "SM": lambda v: sum(v) % 10}
    while match := re.search(r"(MIN|MAX|MED|SM)((?: \d)+) X", text):
        result = functions[match[1]]([int(digit) for digit in match[2].split()])
        text = f"{text[: match.start()]}{result}{text[match.end() :]}"
    return text


def test_listops_is_what_its_text_says():
    task = load("listops", shortest=10, longest=60, depth=5)
    seen, lengths, answers_seen = set(), [], set()
    for tokens, answers in texts(task, Condition(60), count=100):
        (last,) = answers
        row = tokens[: last + 1]
        lengths.append(len(row))
        seen |= set(row)
        assert set(tokens[last + 1 :]) <= {"0"}  # padding
        assert answers[last] == value(" ".join(row))
        nesting = [sum((t in ("MIN", "MAX", "MED", "SM")) - (t == "X") for t in row[: i + 1]) for i in range(len(row))]
        assert (max(nesting) <= 4, nesting[-1]) == (True, 0)
        answers_seen.add(answers[last])
    assert (min(lengths) >= 10, max(lengths) <= 60) == (True, True)
    assert seen == set(task.names)
    assert len(answers_seen) == 10


def test_chance_of_listops_is_the_share_of_the_most_frequent_answer():
    task = load("listops", shortest=10, longest=40, depth=5, test_lengths=[20, 40], examples=50)
    shares = []
    for length in (20, 40):
        batch = task.examples("test", 0, 50, Condition(length))
        answers = [max(row) for row in batch.target_ids.tolist()]
        shares.append(max(Counter(answers).values()) / 50)
    assert task.chance == pytest.approx(sum(shares) / 2)


def test_listops_without_a_possible_tree_raises(monkeypatch):
    monkeypatch.setattr("qkv.tasks.synthetic.listops.MAX_TRIES", 50)
    with pytest.raises(ValueError, match="depth=2 and arguments=2 give no tree of 20 to 40 tokens in 50 tries"):
        load("listops", depth=2, arguments=2).examples("test", 0, 1, Condition(40))
