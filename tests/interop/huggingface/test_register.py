"""The attention registry of transformers, against matrices written down by hand in `models.py`."""

import json
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, create_causal_mask

from qkv.attention import Softmax
from qkv.errors import QkvError
from qkv.interop.huggingface.register import attention_kind, load_pretrained, register_attention, save_pretrained
from tests.interop.models import KINDS, answer, bert, llama, register_plain, tokens

MODELS = pytest.mark.parametrize("model", [bert, llama])
EACH = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register_attention()
    register_plain()


def near(actual, expected):
    assert actual.shape == expected.shape
    assert float((actual - expected).detach().abs().max()) <= 1e-5


def padded(rows, side):
    """Rows of 11, 7 and 3 tokens in one batch, and which of them are real."""
    lengths = (11, 7, 3)[:rows]
    mask = torch.tensor([[place < length for place in range(11)] for length in lengths])
    mask = mask if side == "right" else mask.flip(1)
    return tokens(rows, 11) * mask, mask


def test_names():
    assert {"qkv_softmax", "qkv_linear", "qkv_elu", "qkv_taylor"} <= set(register_attention())
    assert "qkv_additive" not in register_attention()


@MODELS
@EACH
def test_the_whole_model_is_that_of_the_plain_matrix(model, kind):
    near(answer(model(f"qkv_{kind}"), tokens(3, 13)), answer(model(f"plain_{kind}"), tokens(3, 13)))


def test_kinds_differ():
    answers = [answer(llama(f"qkv_{kind}"), tokens(3, 13)) for kind in KINDS]
    assert min(float((a - b).abs().max()) for i, a in enumerate(answers) for b in answers[:i]) > 0.05


@MODELS
@EACH
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(model, kind, side):
    built, (batch, mask) = model(f"qkv_{kind}"), padded(3, side)
    options = {"attention_mask": mask.long(), "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    out = answer(built, batch, **options)
    near(out[mask], answer(model(f"plain_{kind}"), batch, **options)[mask])
    for row, real, given in zip(out, mask, batch, strict=True):
        near(row[real], answer(built, given[real][None])[0])


@MODELS
@EACH
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_of_one(model, kind, side):
    batch, mask = padded(2, side)
    batch, mask, built = batch[1:], mask[1:], model(f"qkv_{kind}")
    places = (mask.cumsum(1) - 1).clamp(min=0)
    out = answer(built, batch, attention_mask=mask.long(), position_ids=places)
    near(out[mask], answer(built, batch[mask][None])[0])


@EACH
@pytest.mark.parametrize("pieces", [[1] * 11, [4, 5, 2], [10, 1]])
def test_with_a_cache_step_by_step(kind, pieces):
    model, cache, outs = llama(f"qkv_{kind}"), transformers.DynamicCache(), []
    batch = tokens(2, 11)
    for piece in batch.split(pieces, 1):
        outs.append(answer(model, piece, past_key_values=cache, use_cache=True))
    near(torch.cat(outs, 1), answer(llama(f"plain_{kind}"), batch))


@EACH
def test_with_a_cache_and_padding(kind):
    model, cache, outs = llama(f"qkv_{kind}"), transformers.DynamicCache(), []
    batch, mask = padded(3, "left")
    places = (mask.cumsum(1) - 1).clamp(min=0)
    for start, end in ((0, 6), (6, 9), (9, 10), (10, 11)):
        options = {"attention_mask": mask[:, :end].long(), "position_ids": places[:, start:end]}
        outs.append(answer(model, batch[:, start:end], past_key_values=cache, use_cache=True, **options))
    expected = answer(llama(f"plain_{kind}"), batch, attention_mask=mask.long(), position_ids=places)
    near(torch.cat(outs, 1)[mask], expected[mask])


@EACH
@pytest.mark.parametrize("masked", [True, False])
def test_a_cache_with_room_for_more(kind, masked):
    """The mask may be as long as the room, or not be there: the new tokens are not the last of the keys."""
    model, batch, outs = llama(f"qkv_{kind}"), tokens(2, 11), []
    cache = transformers.StaticCache(config=model.config, max_cache_len=23)
    for start, end in ((0, 5), (5, 9), (9, 10), (10, 11)):
        mask = (torch.arange(23) < end).long().expand(2, -1) if masked else None
        outs.append(answer(model, batch[:, start:end], attention_mask=mask, past_key_values=cache, use_cache=True))
    near(torch.cat(outs, 1), answer(llama(f"plain_{kind}"), batch))


@EACH
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generated_text(kind, cache):
    batch, mask = padded(3, "left")
    options = {"attention_mask": mask.long(), "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    made = llama(f"qkv_{kind}").generate(batch, cache_implementation=cache, **options)
    assert made.tolist() == llama(f"plain_{kind}").generate(batch, use_cache=False, **options).tolist()


@EACH
def test_packed_rows(kind):
    built, batch = llama(f"qkv_{kind}"), tokens(2, 11)
    places = torch.tensor([[0, 1, 2, 3, 0, 0, 1, 0, 1, 2, 3], [*range(7), *range(4)]])
    out = answer(built, batch, position_ids=places, use_cache=False)
    near(out, answer(llama(f"plain_{kind}"), batch, position_ids=places, use_cache=False))
    near(out[1, 7:], answer(built, batch[1:, 7:])[0])


@pytest.mark.parametrize(
    ("model", "mask", "instead"),
    [(llama, None, "use_cache=False"), (llama, torch.ones(1, 5), "use_cache=False"), (bert, None, "its own row")],
)
def test_packed_rows_that_nothing_keeps_apart(model, mask, instead):
    with pytest.raises(ValueError, match=f"position_ids start again inside a row.*{instead}"):
        answer(model("qkv_elu"), tokens(1, 5), attention_mask=mask, position_ids=torch.tensor([[0, 1, 2, 0, 1]]))


@MODELS
@EACH
def test_the_matrix_of_weights(model, kind):
    batch, mask = padded(3, "right")
    options = {"attention_mask": mask.long(), "output_attentions": True}
    shown = model(f"qkv_{kind}")(batch, **options).attentions
    expected = model(f"plain_{kind}")(batch, **options).attentions
    assert len(shown) == 2
    near(shown[1][0], expected[1][0])


def test_a_mask_of_pairs():
    pairs = torch.rand(3, 1, 5, 5, generator=torch.Generator().manual_seed(2)) < 0.7
    pairs |= torch.eye(5, dtype=torch.bool)
    expected = answer(llama("sdpa"), tokens(3, 5), attention_mask=pairs)
    near(answer(llama("qkv_softmax"), tokens(3, 5), attention_mask=pairs), expected)
    added = torch.zeros(3, 1, 5, 5).masked_fill(~pairs, torch.finfo(torch.float32).min)
    near(answer(llama("qkv_softmax"), tokens(3, 5), attention_mask=added), expected)
    for mask, what in ((pairs, "a mask of shape"), (added, "a score bias")):
        with pytest.raises(ValueError, match=f"attention kind 'taylor' cannot take {what}"):
            answer(llama("qkv_taylor"), tokens(3, 5), attention_mask=mask)


def test_a_sliding_window_is_refused():
    config = transformers.MistralConfig(
        vocab_size=97, hidden_size=24, intermediate_size=29, num_hidden_layers=1, num_attention_heads=6,
        num_key_value_heads=2, sliding_window=4, attn_implementation="qkv_taylor",
    )  # fmt: skip
    with pytest.raises(
        ValueError, match=r"'qkv_taylor' attends to all earlier tokens.*attend to only 4.*sliding_window=None"
    ):
        answer(transformers.MistralModel(config).eval(), tokens(1, 7))
    config.sliding_window = None
    assert answer(transformers.MistralModel(config).eval(), tokens(1, 7)).shape == (1, 7, 24)


def test_another_pattern_is_refused():
    model = llama("qkv_elu")
    rest = {"attention_mask": None, "past_key_values": None}
    with pytest.raises(ValueError, match="another pattern of pairs"):
        create_causal_mask(
            model.config, torch.zeros(1, 5, 24), block_sequence_ids=torch.tensor([[-1, 0, 0, 0, 1]]), **rest
        )
    with pytest.raises(ValueError, match="another pattern of pairs"):
        create_causal_mask(model.config, torch.zeros(1, 5, 24), or_mask_function=lambda b, h, q, k: k < 2, **rest)


@MODELS
def test_dropout_of_weights_is_refused_in_training(model):
    name = "attention_probs_dropout_prob" if model is bert else "attention_dropout"
    with pytest.raises(ValueError, match=rf"has dropout=0.25 .*{name}=0.0"):
        model("qkv_taylor", **{name: 0.25}).train()(tokens(2, 5))
    model("qkv_taylor", **{name: 0.0}).train()(tokens(2, 5))[0].sum().backward()


def test_a_kind_that_drops_weights_does_so_in_training_alone():
    register_attention("softmax(dropout=0.5)")
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model, plain = (bert(f"qkv_{kind}", **none) for kind in ("softmax(dropout=0.5)", "softmax"))
    expected = answer(plain, tokens(2, 7))
    near(answer(model, tokens(2, 7)), expected)
    assert float((answer(model.train(), tokens(2, 7)) - expected).abs().max()) > 0.01
    near(answer(model.eval(), tokens(2, 7)), expected)


def test_a_lost_mask_function_is_noticed(monkeypatch):
    monkeypatch.delitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "qkv_elu")
    with pytest.raises(ValueError, match="'qkv_elu' has no mask function, so padding would be visible"):
        answer(bert("qkv_elu"), tokens(2, 5))


@pytest.mark.parametrize("devices", [("cuda",), ("cpu",)])
def test_what_autocast_narrows_stays_narrow(monkeypatch, devices):
    """A Llama turns its queries by tables of float32; torch's own attention would narrow them again."""
    monkeypatch.setattr("qkv.interop.huggingface.attention.AUTOCAST_DEVICES", devices)
    seen, whole = [], Softmax.forward

    def note(self, q, k, v, **options):
        seen.append((q.dtype, k.dtype, v.dtype))
        return whole(self, q, k, v, **options)

    monkeypatch.setattr(Softmax, "forward", note)
    model = llama("qkv_softmax")
    answer(model, tokens(2, 7))
    assert set(seen) == {(torch.float32,) * 3}
    seen.clear()
    with torch.autocast("cpu", torch.float16):
        answer(model, tokens(2, 7))
    assert {q for q, _, _ in seen} == {torch.float16 if devices == ("cpu",) else torch.float32}


def test_the_scale_of_the_model_is_kept():
    sizes = {"vocab_size": 97, "n_embd": 24, "n_layer": 3, "n_head": 6, "n_positions": 32}
    torch.manual_seed(0)
    config = transformers.GPT2Config(**sizes, scale_attn_by_inverse_layer_idx=True, initializer_range=0.3)
    model = transformers.GPT2LMHeadModel(config).eval()
    for kind in ("softmax", "linear", "taylor"):
        model.set_attn_implementation(f"plain_{kind}")
        expected = answer(model, tokens(2, 7))
        model.set_attn_implementation(f"qkv_{kind}")
        near(answer(model, tokens(2, 7)), expected)


def test_a_kind_with_options():
    assert register_attention("taylor(order=4)")[-1] == "qkv_taylor(order=4)"
    second, fourth, exact = (
        answer(bert(name), tokens(2, 7)) for name in ("qkv_taylor", "qkv_taylor(order=4)", "qkv_softmax")
    )
    assert float((fourth - exact).abs().mean()) < 0.4 * float((second - exact).abs().mean())
    with pytest.raises(ValueError, match="unknown attention kind 'tailor'; did you mean"):
        register_attention("tailor")
    with pytest.raises(ValueError, match="has a window"):
        register_attention("softmax(window=4)")


@MODELS
@EACH
def test_saved_and_loaded(model, kind, tmp_path):
    built = model(f"qkv_{kind}")
    save_pretrained(built, tmp_path)
    again = load_pretrained(tmp_path)
    assert (attention_kind(again), type(again)) == (kind, type(built))
    assert torch.equal(answer(again, tokens(2, 7)), answer(built, tokens(2, 7)))
    # without our loader, too
    plain = type(built).from_pretrained(tmp_path)
    assert plain.config._attn_implementation == f"qkv_{kind}"
    assert not again.training


def test_an_option_is_saved_too(tmp_path):
    register_attention("taylor(order=4)")
    save_pretrained(llama("qkv_taylor(order=4)"), tmp_path)
    assert attention_kind(load_pretrained(tmp_path)) == "taylor(order=4)"


def test_saving_needs_a_kind_of_ours(tmp_path):
    with pytest.raises(ValueError, match="model has attn_implementation='sdpa', which is not a qkv kind"):
        save_pretrained(llama("sdpa"), tmp_path)


def _change(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    record = config.get("qkv") or {}
    (folder / "config.json").write_text(json.dumps({**config, "qkv": {**record, **changes}}))


def test_a_kind_that_is_not_here(tmp_path):
    save_pretrained(llama("qkv_elu"), tmp_path)
    _change(tmp_path, kind="hedgehog")
    with pytest.raises(
        QkvError, match="names an attention kind that does not exist: unknown attention kind 'hedgehog'"
    ):
        load_pretrained(tmp_path)


def test_another_kind_than_the_one_that_was_saved(tmp_path):
    save_pretrained(llama("qkv_elu"), tmp_path)
    _change(tmp_path, kind="linear")
    with pytest.raises(QkvError, match="is not the one it was saved with on .*'linear'"):
        load_pretrained(tmp_path)


def test_a_model_that_names_no_kind(tmp_path):
    llama("sdpa").save_pretrained(tmp_path)
    with pytest.raises(QkvError, match="names no qkv attention kind"):
        load_pretrained(tmp_path)
    _change(tmp_path, kind=3)
    with pytest.raises(QkvError, match='unreadable "qkv" entry'):
        load_pretrained(tmp_path)
    _change(tmp_path, format=2)
    with pytest.raises(QkvError, match="has format 2, but this version reads up to 1"):
        load_pretrained(tmp_path)


def test_a_pickle_is_refused(tmp_path):
    save_pretrained(llama("qkv_elu"), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(QkvError, match="pytorch_model.bin is a pickle"):
        load_pretrained(tmp_path)


def test_weights_with_other_names(tmp_path):
    save_pretrained(llama("qkv_elu"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["more"] = weights.pop("model.norm.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(QkvError, match="missing keys: model.norm.weight"):
        load_pretrained(tmp_path)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(QkvError, match=r'pip install "qkv\[transformers\]"'):
        register_attention()


def test_another_precision_loads(tmp_path):
    save_pretrained(bert("qkv_taylor"), tmp_path)
    near(
        answer(load_pretrained(tmp_path, dtype=torch.float64), tokens(2, 7)),
        answer(bert("qkv_taylor"), tokens(2, 7)).double(),
    )
