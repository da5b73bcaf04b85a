import re

import pytest
import torch

from qkv.data import Tokenizer
from qkv.inference import FillMaskPredictor, MaskedLM
from qkv.models import Encoder, EncoderConfig

TEXTS = ["the cat sat on the mat", "a dog sat", "the mat the cat the dog the mat", "cat"]


@pytest.fixture(scope="module")
def lm():
    tokenizer = Tokenizer.train([*TEXTS, "dogs and cats sitting on mats"], "wordpiece", 60)
    torch.manual_seed(0)
    config = EncoderConfig(dim=12, heads=2, hidden_dim=16, layers=2, max_length=14)
    model = Encoder(config, len(tokenizer))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return MaskedLM(model, tokenizer)


def ids(lm, text):
    return [lm.tokenizer.cls, *lm.tokenizer.encode(text, special=True), lm.tokenizer.sep]


def test_fillers_are_the_likeliest_tokens(lm):
    """By the model itself, one text at a time, against many texts of different lengths at once."""
    texts = ["the [MASK] sat", "[MASK]", "a [MASK] and the [MASK] sat on [MASK] mat"] * 30
    found = lm.fill(texts, best=3)
    for text, masks in list(zip(texts, found, strict=True))[:3]:
        row = torch.tensor([ids(lm, text)])
        places = (row[0] == lm.tokenizer.mask).nonzero()[:, 0]
        with torch.no_grad():
            shares, tokens = lm.model(row)[0][0, places].softmax(-1).sort(descending=True)
        assert [[one.token for one in fillers] for fillers in masks] == tokens[:, :3].tolist()
        assert [[one.probability for one in fillers] for fillers in masks] == [
            pytest.approx(three, rel=1e-4) for three in shares[:, :3].tolist()
        ]
    assert [len(masks) for masks in found] == [1, 1, 3] * 30
    (best,) = found[0]
    assert lm.filled("the [MASK] sat", [best[0]]).split()[-1] == "sat"


def test_vectors_are_means_over_the_tokens(lm):
    vectors = lm.embed(TEXTS, normalize=False)
    assert vectors.shape == (4, 12)
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            expected = lm.model.encode(torch.tensor([ids(lm, text)]))[0].mean(0)
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-6)
    unit = lm.embed(TEXTS)
    torch.testing.assert_close(unit, vectors / vectors.square().sum(1, keepdim=True).sqrt())
    assert lm.embed([]).shape == (0, 12)


def test_a_mask_in_a_text_to_embed_is_text(lm):
    """What somebody writes is embedded as it stands: a name in brackets hides nothing."""
    spelt = lm.embed(["the [MASK] sat"])
    with torch.no_grad():
        hidden = lm.model.encode(torch.tensor([ids(lm, "the [MASK] sat")]))[0].mean(0)
    assert (spelt[0] - torch.nn.functional.normalize(hidden[None])[0]).abs().max() > 0.01


def test_too_long_is_an_error_or_is_cut(lm):
    long = "the cat sat on the mat and the dog sat on the mat"
    assert len(ids(lm, long)) > 14
    with pytest.raises(ValueError, match=r"has \d+ tokens with \[CLS\] and \[SEP\]; the model takes 14"):
        lm.embed([long])
    with pytest.raises(ValueError, match="the model takes 14"):
        lm.fill([f"{long} [MASK]"])
    row = torch.tensor([[*ids(lm, long)[:13], lm.tokenizer.sep]])
    with torch.no_grad():
        expected = lm.model.encode(row)[0].mean(0)
    torch.testing.assert_close(lm.embed([long], normalize=False, truncate=True)[0], expected, rtol=0, atol=1e-6)


def test_an_obstacle_is_what_filling_in_would_raise(lm):
    predictor = FillMaskPredictor(lm, 1)
    assert predictor.problem("the [MASK] sat") is None
    for text in ("the cat sat", "", "[MASK] " * 13, "[MASK] caf\udce9"):
        with pytest.raises(ValueError, match=re.escape(repr(text)[:30])) as raised:
            lm.fill(["the [MASK] sat", text])
        assert predictor.problem(text) == str(raised.value)
    assert predictor.problem("[MASK] " * 12) is None


def test_wrong_use(lm):
    with pytest.raises(ValueError, match=r"'the cat sat' has no \[MASK\] to fill"):
        lm.fill(["the [MASK] sat", "the cat sat"])
    with pytest.raises(ValueError, match="best must be 1 to 47, the size of the vocabulary, got 61"):
        lm.fill(["the [MASK] sat"], best=61)
    with pytest.raises(TypeError, match="texts must be a list of strings, got the string 'the cat'"):
        lm.embed("the cat")
    with pytest.raises(ValueError, match="is not valid UTF-8"):
        lm.embed(["fine", b"caf\xe9".decode(errors="surrogateescape")])
    small = Encoder(EncoderConfig(dim=12, heads=2), 10)
    with pytest.raises(
        ValueError, match="the tokenizer has 47 tokens and the model 10 embeddings: they do not belong together"
    ):
        MaskedLM(small, lm.tokenizer)
