"""GPT-2 of transformers, random weights, in our Decoder and back."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from qkv.decode import SearchLimits, greedy
from qkv.errors import QkvError
from qkv.interop import load_gpt2, save_gpt2
from qkv.interop.huggingface.register import register_attention
from qkv.models import Decoder, DecoderConfig

SIZES = {"vocab_size": 113, "n_embd": 24, "n_layer": 3, "n_head": 6, "n_positions": 256, "n_inner": 41}


def their_model(**changes):
    torch.manual_seed(0)
    options = {"initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2} | changes
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **options)).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # their norms and biases begin as 1 and 0, which would hide a mistake
            torch.nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.3)
    return model


@pytest.fixture
def folder(tmp_path):
    their_model().save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def tokens(rows=3, length=17):
    return torch.randint(4, SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(1))


def difference(ours, theirs, rows=None):
    given = tokens() if rows is None else rows
    with torch.no_grad():
        return float((ours(given) - theirs(given).logits).abs().max())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"activation_function": "gelu"},
        {"activation_function": "relu"},
        {"n_inner": None},
    ],
)
def test_the_same_logits(changes, tmp_path):
    theirs = their_model(**{name: value for name, value in changes.items() if name != "n_inner"})
    if "n_inner" in changes:
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**SIZES, **changes})).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_gpt2(tmp_path)
    assert difference(ours, theirs) <= 1e-4
    assert ours.config.tied is changes.get("tie_word_embeddings", True)


def test_the_same_greedy_text_for_200_tokens(folder):
    prompt = tokens(2, 5)
    options = {"max_new_tokens": 200, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    theirs = their_model().generate(prompt, attention_mask=torch.ones_like(prompt), **options)[:, 5:]
    never = min(set(range(SIZES["vocab_size"])) - set(theirs.flatten().tolist()))  # nothing ends before 200
    for row, expected in zip(prompt, theirs.tolist(), strict=True):
        limits = SearchLimits(200, start=int(row[-1]), end=never, forbidden=())
        (found,) = greedy(load_gpt2(folder), row[None, :-1], None, limits)
        assert list(found.tokens) == expected
    assert len(set(theirs[0].tolist())) > 3


def test_padding_first(folder):
    ours, given = load_gpt2(folder), tokens(2, 9)
    mask = torch.tensor([[True] * 9, [False] * 4 + [True] * 5])
    with torch.no_grad():
        padded = ours(given * mask, mask)
        alone = their_model()(given[1:, 4:]).logits
    assert float((padded[1, 4:] - alone[0]).abs().max()) <= 1e-4


@pytest.mark.parametrize("tied", [True, False])
def test_saved_back(tied, tmp_path):
    torch.manual_seed(0)
    config = DecoderConfig(
        dim=24, heads=6, hidden_dim=41, layers=2, positions="learned", max_length=64, tied=tied, activation="gelu_tanh"
    )
    ours = Decoder(config, 113).eval()
    save_gpt2(ours, tmp_path / "out")
    theirs, found = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not found["missing_keys"] | found["unexpected_keys"]
    assert difference(ours, theirs.eval()) <= 1e-5
    again = load_gpt2(tmp_path / "out")
    assert again.config == config
    assert difference(again, theirs) <= 1e-5


def test_weights_come_back_as_they_were(folder, tmp_path):
    save_gpt2(load_gpt2(folder), tmp_path / "back")
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert max(float((before[name] - after[name]).abs().max()) for name in before) <= 1e-6


def test_another_kind_goes_to_transformers_and_comes_back(folder, tmp_path):
    register_attention()
    ours = load_gpt2(folder, attention="taylor")
    assert difference(ours, their_model()) > 0.01
    save_gpt2(ours, tmp_path / "taylor")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "taylor").eval()
    assert difference(ours, theirs) <= 1e-4
    assert load_gpt2(tmp_path / "taylor").config.attention == "taylor"


def test_what_the_layout_has_no_place_for(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"no tensors for the weights of attention='linear': blocks.0.attention.output_norm"
    ):
        save_gpt2(load_gpt2(folder, attention="linear"), tmp_path / "linear")
    for changes, said in (
        ({"positions": "rope"}, "GPT-2 has positions='learned', but this Decoder has 'rope'"),
        ({"convolution": 3}, "GPT-2 has convolution=0"),
        ({"activation": "tanh"}, "GPT-2 has no activation='tanh'"),
        ({"hidden_dim": 0}, "GPT-2 has feed-forward layers"),
        (
            {"attention": "taylor,softmax"},
            "attention='taylor,softmax' is a pattern, but a Hugging Face folder names one",
        ),
    ):
        sizes = {"dim": 24, "positions": "learned", "activation": "gelu", **changes}
        with pytest.raises(ValueError, match=said):
            save_gpt2(Decoder(DecoderConfig(**sizes), 113), tmp_path / "other")
    own = DecoderConfig(dim=24, positions="learned", attention="additive")
    with pytest.raises(ValueError, match="the weights of attention='additive': blocks.0.attention.attention"):
        save_gpt2(Decoder(own, 113), tmp_path / "additive")
    with pytest.raises(QkvError, match="there is a config.json already"):
        save_gpt2(load_gpt2(folder), folder)


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', but gpt2 is expected"),
        ({"scale_attn_by_inverse_layer_idx": True}, "only False can be loaded"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06, but only 1e-05"),
        ({"activation_function": "silu"}, "activation_function is 'silu', but there are: gelu_new"),
        ({"n_embd": None}, "does not describe a GPT-2"),
        (
            {"attn_implementation": "qkv_hedgehog"},
            "names an attention kind that does not exist: unknown attention kind 'hedgehog'",
        ),
        ({"n_layer": 4}, r"missing: h.3.attn.c_attn.bias, .*, and 4 more"),
        ({"vocab_size": 127}, r"wte.weight has shape \(113, 24\), not \(127, 24\)"),
    ],
)
def test_configurations_that_cannot_be_loaded(changes, said, folder):
    change_config(folder, **changes)
    with pytest.raises(QkvError, match=said):
        load_gpt2(folder)


def test_missing_and_extra_tensors_are_named(folder):
    weights = load_file(folder / "model.safetensors")
    weights["more.weight"] = weights.pop("transformer.ln_f.bias")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(QkvError, match=r"missing: ln_f.bias; extra: more.weight, in .*gpt2"):
        load_gpt2(folder)


def test_names_without_a_prefix_and_old_triangles(folder):
    weights = load_file(folder / "model.safetensors")
    weights = {name.removeprefix("transformer."): x for name, x in weights.items()}
    weights["h.0.attn.bias"] = torch.ones(1, 1, 7, 7)
    save_file(weights, folder / "model.safetensors")
    assert difference(load_gpt2(folder), their_model()) <= 1e-4


def test_half_precision_files_are_read(folder, tmp_path):
    half = their_model().to(torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    assert difference(load_gpt2(tmp_path / "half"), half.float()) <= 1e-4


def test_files_in_pieces(tmp_path):
    their_model().save_pretrained(tmp_path, max_shard_size="20KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert difference(load_gpt2(tmp_path), their_model()) <= 1e-4


def test_kinds_that_cannot_be_put_in(folder):
    with pytest.raises(ValueError, match="unknown attention kind 'tailor'; did you mean 'taylor'"):
        load_gpt2(folder, attention="tailor")
    with pytest.raises(ValueError, match="kind='additive' has learned parameters"):
        load_gpt2(folder, attention="additive")


def test_a_pickle_is_refused(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(QkvError, match="pytorch_model.bin is a pickle, which can run code when it is read"):
        load_gpt2(folder)


def test_damaged_files(folder):
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(QkvError, match="model.safetensors is damaged or not safetensors"):
        load_gpt2(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(QkvError, match="config.json is not JSON"):
        load_gpt2(folder)
    with pytest.raises(QkvError, match="there is no file config.json"):
        load_gpt2(folder / "nothing")


def write_tokenizer(folder, size):
    vocabulary = {f"t{number}": number for number in range(size)}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"vocab": vocabulary}}))


@pytest.mark.parametrize("size", [105, 114])
def test_a_tokenizer_of_another_size(size, folder):
    write_tokenizer(folder, size)
    with pytest.raises(QkvError, match=f"the tokenizer has {size} tokens, but the weights have 113 vectors"):
        load_gpt2(folder)


def test_a_tokenizer_of_this_size(folder, tmp_path):
    write_tokenizer(folder, 113)
    assert load_gpt2(folder).embed.num_embeddings == 113
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**SIZES, "vocab_size": 128})).save_pretrained(tmp_path)
    write_tokenizer(tmp_path, 113)  # rounded up to a multiple of 64, for speed
    assert load_gpt2(tmp_path).embed.num_embeddings == 128


def test_too_long_for_its_positions(folder):
    with pytest.raises(ValueError, match="a sequence of 257 exceeds max_length=256"):
        load_gpt2(folder)(torch.zeros(1, 257, dtype=torch.int64))
