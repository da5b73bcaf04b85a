import pytest

from qkv.pronunciation.text import normalize, split_compound, split_text, strip_accents

KNOWN = {"'bout", "u.s.", "a", "a.", "mr", "mr.", "etc."}


def cut(text):
    pieces = list(split_text(text, KNOWN.__contains__))
    assert "".join(piece.text for piece in pieces) == text
    return [(piece.text, piece.kind[0]) for piece in pieces if piece.kind != "space"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello, world!", [("Hello", "w"), (",", "p"), ("world", "w"), ("!", "p")]),
        ("“It’s well-known”", [("“", "p"), ("It’s", "w"), ("well-known", "w"), ("”", "p")]),
        ("'bout the U.S. etc.", [("'bout", "w"), ("the", "w"), ("U.S.", "w"), ("etc.", "w")]),
        ("it is a.", [("it", "w"), ("is", "w"), ("a", "w"), (".", "p")]),
        ("a.", [("a.", "w")]),
        ("wait...what", [("wait", "w"), ("...", "p"), ("what", "w")]),
        ("n.s.a. f.b.i.", [("n.s.a.", "w"), ("f.b.i.", "w")]),
        ("mp3s (v2.0)", [("mp3s", "w"), ("(", "p"), ("v2.0", "w"), (")", "p")]),
        ("ok🙂🙂!", [("ok", "w"), ("🙂🙂", "s"), ("!", "p")]),
        ("привет 你好", [("привет", "w"), ("你好", "w")]),
        ("e\u0301tude", [("e\u0301tude", "w")]),
        ("and/or a_b __x", [("and", "w"), ("/", "p"), ("or", "w"), ("a_b", "w"), ("__", "p"), ("x", "w")]),
        ("", []),
        (" \t\u3000 ", []),
    ],
)
def test_words_and_what_stands_between(text, pieces):
    assert cut(text) == pieces


def test_letters_made_plain():
    assert normalize("O’NEIL") == "o'neil"
    assert normalize("e\u0301tude") == "étude"
    assert [strip_accents(word) for word in ("étude", "straße", "ﬁn", "smørrebrød", "x²")] == [
        "etude",
        "strasse",
        "fin",
        "smorrebrod",
        "x2",
    ]


def test_parts_of_a_word():
    assert split_compound("mp3") == ["mp", "three"]
    assert split_compound("well-known") == ["well", "known"]
    assert split_compound("b2b") == ["b", "two", "b"]
    assert split_compound("rock'n'roll.js") == ["rock'n'roll", "js"]
    assert split_compound("٣d") == ["three", "d"]
    assert split_compound("...") == []
    assert [split_compound(word) for word in ("1st", "42nd", "5th", "3rds", "1street")] == [
        ["first"],
        ["four", "second"],
        ["fifth"],
        ["three", "rds"],
        ["one", "street"],
    ]
