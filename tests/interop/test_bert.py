"""BERT of transformers, random weights and all-MiniLM-L6-v2, in our Encoder and back."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional

from benchmarks.minilm import batches, equality, real_sentences, their_model
from qkv.errors import QkvError
from qkv.interop import load_bert, minilm, save_bert
from qkv.interop.huggingface.register import register_attention
from qkv.models import Encoder, EncoderConfig

SIZES = {
    "vocab_size": 113,
    "hidden_size": 24,
    "intermediate_size": 41,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 37,
    "type_vocab_size": 3,
}


def random_bert(cls=transformers.BertModel, **changes):
    torch.manual_seed(0)
    model = cls(transformers.BertConfig(**{**SIZES, "initializer_range": 0.3, **changes})).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # norms and biases begin as 1 and 0, which would hide a mistake
            torch.nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.3)
    return model


@pytest.fixture
def folder(tmp_path):
    random_bert().save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def inputs():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 113, (3, 17), generator=generator)
    segments = torch.randint(0, 3, (3, 17), generator=generator)
    mask = torch.arange(17) < torch.tensor([[17], [11], [5]])
    return tokens * mask, segments, mask


@torch.no_grad()
def differences(ours, theirs):
    tokens, segments, mask = inputs()
    their = theirs(tokens, token_type_ids=segments, attention_mask=mask.long(), output_hidden_states=True)
    states = ours.hidden_states(tokens, segments, mask)
    assert len(states) == len(their.hidden_states) == 4
    return max(float((a - b)[mask].abs().max()) for a, b in zip(states, their.hidden_states, strict=True))


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3])
def test_every_hidden_state_and_the_pooled_one(epsilon, tmp_path):
    theirs = random_bert(layer_norm_eps=epsilon)
    theirs.save_pretrained(tmp_path)
    ours = load_bert(tmp_path)
    assert differences(ours, theirs) <= 1e-5
    tokens, segments, mask = inputs()
    with torch.no_grad():
        expected = theirs(tokens, token_type_ids=segments, attention_mask=mask.long()).pooler_output
        assert float((ours(tokens, segments, mask)[1] - expected).abs().max()) <= 1e-5
    assert ours.config.epsilon == epsilon
    assert not ours.config.pretraining


def test_both_heads_of_pretraining(tmp_path):
    theirs = random_bert(transformers.BertForPreTraining)
    theirs.save_pretrained(tmp_path)
    tokens, segments, mask = inputs()
    with torch.no_grad():
        words, following = load_bert(tmp_path)(tokens, segments, mask)
        expected = theirs(tokens, token_type_ids=segments, attention_mask=mask.long())
    assert float((words - expected.prediction_logits)[mask].abs().max()) <= 1e-5
    assert float((following - expected.seq_relationship_logits).abs().max()) <= 1e-5


@pytest.mark.parametrize("pretraining", [True, False])
def test_saved_back(pretraining, tmp_path):
    torch.manual_seed(0)
    config = EncoderConfig(dim=24, heads=6, hidden_dim=41, layers=3, max_length=37, pretraining=pretraining)
    ours = Encoder(config, 113, 3).eval()
    save_bert(ours, tmp_path)
    cls = transformers.BertForPreTraining if pretraining else transformers.BertModel
    theirs, found = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["missing_keys"] | found["unexpected_keys"]
    assert differences(ours, theirs.eval()) <= 1e-5
    assert load_bert(tmp_path).config == config


def test_another_kind_goes_to_transformers_and_comes_back(folder, tmp_path):
    register_attention()
    ours = load_bert(folder, attention="elu")
    assert differences(ours, random_bert()) > 0.01
    save_bert(ours, tmp_path / "elu")
    theirs = transformers.BertModel.from_pretrained(tmp_path / "elu").eval()
    assert theirs.config._attn_implementation == "qkv_elu"
    assert differences(ours, theirs) <= 1e-5
    assert load_bert(tmp_path / "elu").config.attention == "elu"


def test_what_the_layout_has_no_place_for(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"no tensors for the weights of attention='linear': blocks.0.attention.output_norm"
    ):
        save_bert(load_bert(folder, attention="linear"), tmp_path / "linear")
    with pytest.raises(ValueError, match="the weights of attention='additive': blocks.0.attention.attention"):
        save_bert(Encoder(EncoderConfig(attention="additive"), 113), tmp_path / "additive")
    for changes, said in (
        ({"positions": "rope"}, "BERT has positions='learned', but this Encoder has 'rope'"),
        ({"norm": "before"}, "BERT has norm='after', but this Encoder has 'before'"),
        ({"hidden_dim": 0}, "BERT has feed-forward layers"),
        ({"key_dim": 8}, "keys as wide as a head"),
    ):
        with pytest.raises(ValueError, match=said):
            save_bert(Encoder(EncoderConfig(**changes), 113), tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta', but bert is expected"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', but only 'gelu' can be loaded"),
        ({"position_embedding_type": "relative_key"}, "only 'absolute' can be loaded"),
        ({"hidden_size": None}, "does not describe a BERT"),
        ({"num_hidden_layers": 2}, r"extra: encoder.layer.2.attention.output.LayerNorm.bias, "),
        ({"vocab_size": 127}, r"embeddings.word_embeddings.weight has shape \(113, 24\), not \(127, 24\)"),
        (
            {"attn_implementation": "qkv_hedgehog"},
            "names an attention kind that does not exist: unknown attention kind 'hedgehog'",
        ),
    ],
)
def test_configurations_that_cannot_be_loaded(changes, said, folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(QkvError, match=said):
        load_bert(folder)


def test_missing_and_extra_tensors_are_named(folder):
    weights = load_file(folder / "model.safetensors")
    weights["more.weight"] = weights.pop("pooler.dense.bias")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(QkvError, match=r"missing: pooler.dense.bias; extra: more.weight, in .*bert"):
        load_bert(folder)


def test_names_of_old_files(folder):
    def old(name):
        return "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    weights = {old(name): x for name, x in load_file(folder / "model.safetensors").items()}
    weights["bert.embeddings.position_ids"] = torch.arange(37)[None]
    save_file(weights, folder / "model.safetensors")
    assert differences(load_bert(folder), random_bert()) <= 1e-5


def test_kinds_that_cannot_be_put_in(folder):
    with pytest.raises(ValueError, match="unknown attention kind 'tailor'; did you mean 'taylor'"):
        load_bert(folder, attention="tailor")
    with pytest.raises(ValueError, match="kind='additive' has learned parameters"):
        load_bert(folder, attention="additive")


def test_a_pickle_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(QkvError, match="pytorch_model.bin is a pickle"):
        load_bert(folder)


def test_too_long_for_its_positions(folder):
    with pytest.raises(ValueError, match="a sequence of 38 exceeds max_length=37"):
        load_bert(folder).encode(torch.zeros(1, 38, dtype=torch.int64))


@pytest.mark.slow
def test_minilm_is_that_of_transformers(tmp_path):
    """Every seventh of the 200 sentences; the benchmark takes them all."""
    rows = real_sentences()
    assert (len(rows), min(map(len, rows)), max(map(len, rows))) == (200, 4, 200)
    ours, theirs, given = load_bert(minilm()), their_model(), batches(rows[::7])
    found = equality(ours, theirs, given)
    assert found["largest_difference"] <= 1e-5
    assert found["smallest_cosine"] >= 0.999999
    other = load_bert(minilm(), attention="taylor")
    assert equality(other, theirs, batches(rows[:3]))["largest_difference"] > 0.01
    save_bert(ours, tmp_path)
    again, info = transformers.BertModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    assert equality(ours, again.eval(), given[:1])["largest_difference"] <= 1e-5


@pytest.mark.slow
def test_minilm_knows_what_sentences_mean():
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(minilm() / "tokenizer.json"))
    model = load_bert(minilm())

    def vector(text):
        with torch.no_grad():
            return model.encode(torch.tensor([tokenizer(text).input_ids])).mean(1)[0]

    one, same, other = map(vector, ("A man plays the guitar.", "Someone is playing guitar.", "Prices fell in May."))
    assert float(functional.cosine_similarity(one, same, dim=0)) > 0.7
    assert float(functional.cosine_similarity(one, other, dim=0)) < 0.3
