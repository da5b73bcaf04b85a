"""A Hugging Face BERT or GPT-2 where a run folder is expected."""

import json

import pytest
import torch
import transformers

from qkv.data import Tokenizer
from qkv.errors import QkvError
from qkv.inference import PredictOptions
from qkv.inference.generate import encode_prompt, generate, token_chooser
from qkv.interop import save_bert, save_gpt2
from qkv.models import Decoder, DecoderConfig, Encoder, EncoderConfig, mean_pool
from qkv.runs import load, load_masked_lm, read_config
from qkv.train import Run

TEXTS = ["the cat sat on the mat", "a dog ran over the hill", "seven cats and one dog"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, "wordpiece", 90)


@pytest.fixture
def folder(tokenizer, tmp_path):
    torch.manual_seed(0)
    config = EncoderConfig(dim=24, heads=3, hidden_dim=29, layers=2, max_length=19)
    save_bert(Encoder(config, len(tokenizer)), tmp_path / "bert")
    tokenizer.save(tmp_path / "bert" / "tokenizer.json")
    return tmp_path / "bert"


def test_it_is_restored_with_its_own_tokenizer(folder, tokenizer):
    config, job, model = load(folder)
    assert (config.task, config.family, config.model["dim"]) == ("masked", "encoder", 24)
    assert job.tokenizer == tokenizer
    assert not model.training


def test_it_embeds_and_fills_in(folder, tokenizer):
    reader = load_masked_lm(folder)
    ids = [tokenizer.cls, *tokenizer.encode(TEXTS[0]), tokenizer.sep]
    with torch.no_grad():
        expected = mean_pool(reader.model.encode(torch.tensor([ids])))[0]
    assert torch.allclose(reader.embed(TEXTS, normalize=False)[0], expected, atol=1e-6)
    assert len(reader.fill(["the [MASK] sat"], best=7)[0][0]) == 7


def test_a_gpt2_writes_what_transformers_writes(tmp_path):
    tokenizer = Tokenizer.train(TEXTS, "bytes", 270)
    torch.manual_seed(0)
    config = DecoderConfig(dim=24, heads=3, hidden_dim=29, layers=2, positions="learned", max_length=64)
    model = Decoder(config, len(tokenizer))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_gpt2(model, tmp_path)
    tokenizer.save(tmp_path / "tokenizer.json")
    found, job, ours = load(tmp_path)
    assert (found.task, found.family) == ("text", "decoder")
    prompt = encode_prompt(job.tokenizer, ours, "the cat", 41)
    *_, written = generate(job.tokenizer, ours, prompt, token_chooser("greedy", PredictOptions()))
    given = torch.tensor([prompt.ids])
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=41,
        do_sample=False,
        eos_token_id=prompt.limits.end,
        pad_token_id=tokenizer.pad,
        suppress_tokens=list(prompt.limits.forbidden),
    )
    assert written.tokens >= 5
    assert written.text == tokenizer.decode(theirs[0, len(prompt.ids) :].tolist())


def test_it_has_no_run_to_go_on_with(folder):
    with pytest.raises(QkvError, match="this is a Hugging Face model, which can predict but has no run"):
        read_config(Run(folder))


def test_another_type(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    with pytest.raises(QkvError, match=r"of type 'llama' are not supported \(supported: bert, gpt2\)"):
        load(folder)


def test_without_its_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(QkvError, match="there is no file tokenizer.json"):
        load(folder)


def test_with_another_tokenizer(folder):
    Tokenizer.train([*TEXTS, "two quick brown foxes jump by"], "wordpiece", 200).save(folder / "tokenizer.json")
    with pytest.raises(QkvError, match=r"the tokenizer has \d+ tokens, but the weights have \d+ vectors"):
        load(folder)


def test_a_broken_config_is_a_broken_run(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(QkvError, match="config.json is not JSON or is truncated"):
        load(folder)
