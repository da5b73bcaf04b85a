import copy
import json
import pickle
import random
import subprocess
import sys

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from qkv.data import Tokenizer, read_corpus
from qkv.errors import QkvError

KINDS = ("bytes", "wordpiece", "characters")


@pytest.fixture(scope="module")
def trained():
    return {kind: Tokenizer.train(read_corpus()["train"], kind, 600) for kind in KINDS}


@pytest.mark.parametrize(
    "text", ["", " ", "The cat", "a\n\n b\tc ", "Wörld 日本 \x00 \U0001f40d", "<end> [MASK] <pad>"]
)
def test_byte_level_bpe_round_trips_any_text(trained, text):
    assert trained["bytes"].decode(trained["bytes"].encode(text)) == text


def test_characters_by_hand():
    tokenizer = Tokenizer.train(["abba", "ac\n"], "characters", 7)
    assert [tokenizer.id_to_token(number) for number in range(len(tokenizer))] == [
        "<pad>", "<start>", "<end>", "<unknown>", "\n", "a", "b",
    ]  # fmt: skip
    assert tokenizer.encode("ab\nca") == [5, 6, 4, 3, 5]
    assert tokenizer.decode([1, 5, 6, 2, 0, 3]) == "ab<unknown>"


def test_bpe_by_hand():
    """The commonest pair is merged first: ab seven times, then a space and ab six times; 256 bytes, four special."""
    tokenizer = Tokenizer.train(["abc abc abc abd abd abd abc"], "bytes", 262)
    assert len(tokenizer) == 262
    assert [tokenizer.id_to_token(260), tokenizer.id_to_token(261)] == ["ab", "Ġab"]
    assert tokenizer.decode(tokenizer.encode("abc abd")) == "abc abd"
    assert len(tokenizer.encode("abcabc abd")) == 6


def test_wordpiece_splits_words_into_the_longest_pieces_in_lower_case(trained):
    """By the rule of WordPiece: the longest beginning that is there, then the longest ##continuation, and so on."""
    tokenizer = trained["wordpiece"]
    there = {tokenizer.id_to_token(number) for number in range(len(tokenizer))}

    def longest(word):
        pieces, start = [], 0
        while start < len(word):
            end = next(e for e in range(len(word), start, -1) if ("##" if start else "") + word[start:e] in there)
            pieces.append(("##" if start else "") + word[start:end])
            start = end
        return pieces

    words = ["statement", "expression", "tokenizers", "the"]
    found = [tokenizer.id_to_token(number) for number in tokenizer.encode("Statement EXPRESSION Tokenizers thé")]
    assert found == [piece for word in words for piece in longest(word)]


def test_special_tokens(trained):
    for kind in ("bytes", "characters"):
        one = trained[kind]
        assert (one.pad, one.start, one.end, one.unknown) == (0, 1, 2, 3)
        assert (one.mask, one.cls, one.sep) == (None, None, None)
        assert list(one.special) == ["<pad>", "<start>", "<end>", "<unknown>"]
    one = trained["wordpiece"]
    assert (one.pad, one.start, one.end, one.unknown, one.mask) == (0, 1, 2, 3, 4)
    assert (one.cls, one.sep) == (1, 2)
    assert one.special == {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4}


def test_names_of_special_tokens_in_a_text_are_text_by_default(trained):
    one = trained["wordpiece"]
    assert not set(one.encode("a [MASK] b [SEP]")) & {1, 2, 4}
    assert one.encode("a [MASK] b", special=True) == [*one.encode("a"), 4, *one.encode("b")]
    assert one.decode([1, *one.encode("a"), 4, 2, 0]) == "a [MASK]"


@pytest.mark.parametrize("kind", KINDS)
def test_files_and_records(trained, kind, tmp_path):
    one = trained[kind]
    one.save(tmp_path / "tokenizer.json")
    text = 'The "assert" statement, 3 times.'
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again == one == Tokenizer.from_record(json.loads(json.dumps(one.to_record())))
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    assert one.encode(text) == library.encode(text, add_special_tokens=False).ids
    assert one.encode_batch([text, "x"]) == [one.encode(text), one.encode("x")]
    assert hash(again) == hash(one)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_treats_names_of_special_tokens_as_text_too(trained, again):
    one, text = trained["bytes"], "The <end> of it"
    assert again(one) == one
    assert again(one).encode(text) == one.encode(text)
    assert again(one).encode(text, special=True) == one.encode(text, special=True)


def test_training_is_deterministic_across_processes(trained):
    """The library's own WordPiece training is not: it assigns ids to characters in hash order."""
    code = (
        "import json; from qkv.data import Tokenizer, read_corpus; print(json.dumps("
        f"[Tokenizer.train(iter(read_corpus()['train']), kind, 600).to_record() for kind in {KINDS}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == [trained[kind].to_record() for kind in KINDS]


def test_a_loaded_tokenizer_keeps_its_ids_and_does_not_truncate(tmp_path):
    library = Library(models.WordLevel({"<|endoftext|>": 0, "a": 1, "<unk>": 2}, unk_token="<unk>"))
    library.add_special_tokens(["<|endoftext|>"])
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.enable_truncation(2)
    library.enable_padding(length=2)
    library.save(str(tmp_path / "t.json"))
    one = Tokenizer.load(tmp_path / "t.json")
    assert (one.start, one.end, one.pad, one.unknown) == (0, 0, 0, 2)
    assert one.encode("a a a b") == [1, 1, 1, 2]
    assert one.encode("a") == [1]


def test_bad_input(tmp_path, trained):
    for number in (-1, 600):
        with pytest.raises(ValueError, match=f"ids must be 0 to 599, got {number}"):
            trained["bytes"].id_to_token(number)
    with pytest.raises(ValueError, match="unknown tokenizer kind 'byte'; did you mean 'bytes'"):
        Tokenizer.train(["x"], "byte")
    with pytest.raises(ValueError, match="vocab_size must be at least 260 for bytes, got 100"):
        Tokenizer.train(["x"], "bytes", 100)
    with pytest.raises(ValueError, match="vocab_size must be at least 31 for the characters of these texts, got 30"):
        Tokenizer.train([" ".join(chr(97 + i) for i in range(25)) + " ab"], "wordpiece", 30)
    with pytest.raises(TypeError, match="texts must be an iterable of texts, got one text"):
        Tokenizer.train("abc")
    (tmp_path / "tok1.json").write_text("{}")
    with pytest.raises(QkvError, match="there is no file tok.json, in .*; did you mean tok1.json"):
        Tokenizer.load(tmp_path / "tok.json")
    with pytest.raises(QkvError, match=r"tok1.json is not a valid tokenizer file \(.*\), in "):
        Tokenizer.load(tmp_path / "tok1.json")
    library = Library.from_str(
        json.dumps(trained["characters"].to_record()["tokenizer"]).replace("<start>", "<a>").replace("<end>", "<b>")
    )
    library.save(str(tmp_path / "none.json"))
    with pytest.raises(QkvError, match=r"no start or end token: expected one of <start>, .*none\.json"):
        Tokenizer.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"ids must be 0 to \d+, got 600"):
        trained["bytes"].decode([600])
    with pytest.raises(ValueError, match="a tokenizer record must have a key tokenizer with an object, got None"):
        Tokenizer.from_record({"tokens": []})
    with pytest.raises(ValueError, match=r"the record is not a valid tokenizer \("):
        Tokenizer.from_record({"tokenizer": {}})


def test_streams_of_broken_bytes_are_decoded_in_linear_time():
    """Bytes that never complete a character come out in time, and together they are the text of all ids."""
    tokenizer = Tokenizer.train(["alpha \u00e4 \u6f22 \U0001f600"] * 3, "bytes", 280)
    broken = [number for number in range(4, 260) if tokenizer.decode([number]) == "\ufffd"]
    whole = tokenizer.encode("\u00e4\u6f22\U0001f600 a")
    draw = random.Random(0)
    assert len(broken) == 128
    for _ in range(500):
        ids = draw.choices(broken + draw.choice(([], whole)), k=draw.randrange(1, 70))
        decoder = tokenizer.stream_decoder(draw.choice(([], whole)))
        pieces = [decoder.push(number) for number in ids]
        assert "".join(pieces) + decoder.flush() == tokenizer.decode(ids)
    decoder = tokenizer.stream_decoder()
    waited = 0
    for _ in range(20_000):  # quadratic time would be minutes
        waited = 0 if decoder.push(broken[0]) else waited + 1
        assert waited <= 16
