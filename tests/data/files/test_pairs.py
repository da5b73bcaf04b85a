import tracemalloc

import pytest

from qkv.data import MalformedLine, Pair, read_pairs
from qkv.errors import QkvError


@pytest.fixture
def write(tmp_path):
    def written(data):
        path = tmp_path / "pairs.tsv"
        path.write_bytes(data)
        return path

    return written


def test_a_source_and_its_targets(write):
    path = write("cat\tK AE1 T\ncafé\tK AH0\tK AE2  F\n\n   \ncat\tK AE1 D\tK AE1 T\n".encode())
    found = read_pairs(path)
    assert found.bad_lines == ()
    assert found.pairs == (
        Pair(("c", "a", "t"), (("K", "AE1", "T"), ("K", "AE1", "D"))),
        Pair(("c", "a", "f", "é"), (("K", "AH0"), ("K", "AE2", "F"))),
    )


def test_either_side_is_split_into_characters_or_words(write):
    path = write(b" go on \tva t'en\n")
    assert read_pairs(str(path), source="words", target="words").pairs[0] == Pair(("go", "on"), (("va", "t'en"),))
    characters = read_pairs(path, source="characters", target="characters").pairs[0]
    assert characters == Pair(("g", "o", " ", "o", "n"), (("v", "a", " ", "t", "'", "e", "n"),))
    with pytest.raises(ValueError, match="unknown target unit 'word'; did you mean 'words'"):
        read_pairs(path, target="word")
    with pytest.raises(ValueError, match="unknown source unit 'letters'"):
        read_pairs(path, source="letters")


def test_files_of_other_systems(write):
    path = write(b"\xef\xbb\xbfa\tX\r\nb\tY\r\n\r\nc\xe2\x80\xa8d\tZ")
    found = read_pairs(path)
    assert [pair.source for pair in found.pairs] == [("a",), ("b",), ("c", "\u2028", "d")]
    assert [pair.targets for pair in found.pairs] == [(("X",),), (("Y",),), (("Z",),)]
    assert found.bad_lines == ()


def test_a_carriage_return_ends_a_line(write):
    found = read_pairs(write(b"ab\tA B\rcd\tC D\r\ref\tE F\rgh\tG\n" + b"x" * 200_000 + b"\rij\tI\rstray"))
    assert ["".join(pair.source) for pair in found.pairs] == ["ab", "cd", "ef", "gh", "ij"]
    assert [pair.targets for pair in found.pairs[:2]] == [(("A", "B"),), (("C", "D"),)]
    assert found.bad_lines == (MalformedLine(6, "longer than 100000 bytes"), MalformedLine(8, "no tab"))


BAD = (
    (b"no tab here", "no tab"),
    (b"\tX", "the source is empty"),
    (b"  \tX", "the source is empty"),
    (b"a\t", "target 1 is empty"),
    (b"a\tX\t \tY", "target 2 is empty"),
    (b"\t", "the source is empty"),
    (b"a\xff\tX", "not UTF-8 at byte 2"),
    (b"a\tX\xc3", "not UTF-8 at byte 4"),
    (b"a\0b\tX", "a NUL character"),
    (b"a\t" + b"X" * 99_999, "longer than 100000 bytes"),
    (b"y" * 1_000_000, "longer than 100000 bytes"),
)


def test_bad_lines_are_counted_and_named(write):
    path = write(b"good\tG\n\n" + b"\n".join(line for line, _ in BAD) + b"\nlast\tL\n")
    found = read_pairs(path)
    assert [pair.targets for pair in found.pairs] == [(("G",),), (("L",),)]
    assert found.bad_lines == tuple(MalformedLine(3 + place, reason) for place, (_, reason) in enumerate(BAD))


@pytest.mark.parametrize("ending", [b"", b"\n"])
@pytest.mark.parametrize(("line", "reason"), BAD)
def test_strict_raises_for_the_first_malformed_line(write, line, reason, ending):
    path = write(b"good\tG\n" + line + ending)
    with pytest.raises(QkvError) as caught:
        read_pairs(path, strict=True)
    assert str(caught.value) == f"line 2: {reason}, in {path}"


@pytest.mark.parametrize("ending", [b"", b"\n", b"\nb\tY\n"])
def test_the_longest_line_that_is_read(write, ending):
    found = read_pairs(write(b"a\t" + b"X" * 99_998 + ending))
    assert found.bad_lines == ()
    assert found.pairs[0].targets == (("X" * 99_998,),)


def test_a_long_line_is_never_held_in_memory(write):
    path = write(b"a\tX\n" + b"y" * 20_000_000 + b"\nb\tY\n")
    tracemalloc.start()
    found = read_pairs(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.pairs) == 2
    assert found.bad_lines == (MalformedLine(2, "longer than 100000 bytes"),)
    assert peak < 1_000_000


def test_no_file(write, tmp_path):
    write(b"a\tX\n")
    with pytest.raises(QkvError) as caught:
        read_pairs(tmp_path / "pair.tsv")
    assert str(caught.value) == f"there is no file pair.tsv, in {tmp_path}; did you mean pairs.tsv?"
    with pytest.raises(QkvError, match=f"{tmp_path.name} is a folder, but a file is expected, in {tmp_path.parent}"):
        read_pairs(tmp_path)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "no pair among 0 lines"),
        (b"\n \n", "no pair among 2 lines"),
        (b"\nx\ny\t\n", "no pair among 3 lines, 2 of them malformed; line 2: no tab"),
    ],
)
def test_no_pair(write, data, what):
    path = write(data)
    with pytest.raises(QkvError) as caught:
        read_pairs(path)
    assert (caught.value.what, caught.value.where) == (what, path)


@pytest.mark.parametrize(
    ("first", "header", "expected"),
    [
        ("source\ttarget", None, ("source", "target")),
        ("Word\tPronunciation\tmore", None, ("Word", "Pronunciation", "more")),
        ("\ufeffinput \toutput", None, ("input", "output")),
        ("source\ttarget", False, ()),
        ("a\tb", None, ()),
        ("word\tW ER D", None, ()),
        ("a\tb", True, ("a", "b")),
    ],
)
def test_a_header_is_no_pair(tmp_path, first, header, expected):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"{first}\nx\ty\nsource\ttarget\n")
    found = read_pairs(path, header=header)
    assert found.header == expected
    assert found.bad_lines == ()
    sources = {"".join(pair.source) for pair in found.pairs}
    kept = set() if expected else {first.split("\t")[0]}
    assert sources == {"x", "source"} | kept  # a later line is a pair
