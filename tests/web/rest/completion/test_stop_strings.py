import random

import pytest

from qkv.web.rest.completion.stop_strings import StopStrings


def one_by_one(text, stops):
    """The definition: the first character after which the text ends in a stop string ends it."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


def in_pieces(pieces, stops):
    found = StopStrings(stops)
    texts = [found.push(piece) for piece in pieces]
    return "".join([*texts, "" if found.found else found.flush()]), found.found


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["one\n", "\ntwo"], ["\n\n"], ("one", True)),
        (["a", "b", "a", "b", "c"], ["abc"], ("ab", True)),
        (["xaab"], ["b", "aab"], ("x", True)),  # both end here; the longer one begins first
        (["xab", "c"], ["abc", "b"], ("xa", True)),  # b is complete before abc
        (["end o"], ["of"], ("end o", False)),
        (["", ""], ["x"], ("", False)),
        (["x"], ["x"], ("", True)),
        (["any"], [], ("any", False)),
    ],
)
def test_by_hand(pieces, stops, expected):
    assert in_pieces(pieces, stops) == expected


def test_the_pieces_do_not_matter():
    """Random texts over two letters, in random pieces, against the definition."""
    draw, stopped = random.Random(0), 0
    for _ in range(3000):
        text = "".join(draw.choices("ab", k=draw.randrange(12)))
        stops = ["".join(draw.choices("ab", k=draw.randrange(1, 5))) for _ in range(draw.randrange(4))]
        cuts = sorted(draw.choices(range(len(text) + 1), k=draw.randrange(6)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        expected = one_by_one(text, stops)
        assert in_pieces(pieces, stops) == expected
        stopped += expected[1]
    assert 500 < stopped < 2500


def test_only_what_could_begin_a_stop_string_is_held_back():
    found = StopStrings(["\n\n", "END"])
    assert [found.push(piece) for piece in ("a\n", "b E", "Nx", "EN")] == ["a", "\nb ", "ENx", ""]
    assert found.push("D more") == ""
    assert found.found
    assert found.push("anything") == ""
