import re

import pytest
import torch

from qkv.data import Tokenizer
from qkv.inference import Reader
from qkv.models import Encoder, EncoderConfig

TEXTS = ["the cat sat on the mat", "a dog sat", "the mat the cat the dog the mat", "cat"]


@pytest.fixture(scope="module")
def reader():
    tokenizer = Tokenizer.train([*TEXTS, "dogs and cats sitting on mats"], "wordpiece", 60)
    torch.manual_seed(0)
    config = EncoderConfig(dim=12, heads=2, hidden_dim=16, layers=2, max_length=14)
    model = Encoder(config, len(tokenizer))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return Reader(model, tokenizer)


def ids(reader, text):
    return [reader.tokenizer.cls, *reader.tokenizer.encode(text, special=True), reader.tokenizer.sep]


def test_fillers_are_the_likeliest_tokens(reader):
    """By the model itself, one text at a time, against many texts of different lengths at once."""
    texts = ["the [MASK] sat", "[MASK]", "a [MASK] and the [MASK] sat on [MASK] mat"] * 30
    found = reader.fill(texts, best=3)
    for text, masks in list(zip(texts, found, strict=True))[:3]:
        row = torch.tensor([ids(reader, text)])
        places = (row[0] == reader.tokenizer.mask).nonzero()[:, 0]
        with torch.no_grad():
            shares, tokens = reader.model(row)[0][0, places].softmax(-1).sort(descending=True)
        assert [[one.token for one in fillers] for fillers in masks] == tokens[:, :3].tolist()
        assert [[one.probability for one in fillers] for fillers in masks] == [
            pytest.approx(three, rel=1e-4) for three in shares[:, :3].tolist()
        ]
    assert [len(masks) for masks in found] == [1, 1, 3] * 30
    (best,) = found[0]
    assert reader.filled("the [MASK] sat", [best[0]]).split()[-1] == "sat"


def test_vectors_are_means_over_the_tokens(reader):
    vectors = reader.embed(TEXTS, normalize=False)
    assert vectors.shape == (4, 12)
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            expected = reader.model.read(torch.tensor([ids(reader, text)]))[0].mean(0)
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-6)
    unit = reader.embed(TEXTS)
    torch.testing.assert_close(unit, vectors / vectors.square().sum(1, keepdim=True).sqrt())
    assert reader.embed([]).shape == (0, 12)


def test_a_mask_in_a_text_to_embed_is_text(reader):
    """What somebody writes is embedded as it stands: a name in brackets hides nothing."""
    spelt = reader.embed(["the [MASK] sat"])
    with torch.no_grad():
        hidden = reader.model.read(torch.tensor([ids(reader, "the [MASK] sat")]))[0].mean(0)
    assert (spelt[0] - torch.nn.functional.normalize(hidden[None])[0]).abs().max() > 0.01


def test_too_long_is_an_error_or_is_cut(reader):
    long = "the cat sat on the mat and the dog sat on the mat"
    assert len(ids(reader, long)) > 14
    with pytest.raises(ValueError, match=r"has \d+ tokens with \[CLS\] and \[SEP\]; the model takes 14"):
        reader.embed([long])
    with pytest.raises(ValueError, match="the model takes 14"):
        reader.fill([f"{long} [MASK]"])
    row = torch.tensor([[*ids(reader, long)[:13], reader.tokenizer.sep]])
    with torch.no_grad():
        expected = reader.model.read(row)[0].mean(0)
    torch.testing.assert_close(reader.embed([long], normalize=False, cut=True)[0], expected, rtol=0, atol=1e-6)


def test_an_obstacle_is_what_filling_in_would_raise(reader):
    assert reader.obstacle("the [MASK] sat") is None
    for text in ("the cat sat", "", "[MASK] " * 13, "[MASK] caf\udce9"):
        with pytest.raises(ValueError, match=re.escape(repr(text)[:30])) as raised:
            reader.fill(["the [MASK] sat", text])
        assert reader.obstacle(text) == str(raised.value)
    assert reader.obstacle("[MASK] " * 12) is None


def test_wrong_use(reader):
    with pytest.raises(ValueError, match=r"'the cat sat' has no \[MASK\] to fill in"):
        reader.fill(["the [MASK] sat", "the cat sat"])
    with pytest.raises(ValueError, match="best must be 1 to 47, the tokens that there are, got 61"):
        reader.fill(["the [MASK] sat"], best=61)
    with pytest.raises(TypeError, match="texts must be a list of texts, got the text 'the cat'"):
        reader.embed("the cat")
    with pytest.raises(ValueError, match="was not UTF-8 where it came from"):
        reader.embed(["fine", b"caf\xe9".decode(errors="surrogateescape")])
    small = Encoder(EncoderConfig(dim=12, heads=2), 10)
    with pytest.raises(ValueError, match="the tokenizer has 47 tokens and the model 10: they do not belong together"):
        Reader(small, reader.tokenizer)
