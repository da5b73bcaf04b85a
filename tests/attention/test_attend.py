import doctest
from importlib import import_module

import pytest
import torch

import qkv
from qkv.attention import Taylor, build, parse

Q, K, V = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 7)


def test_attend_is_the_mechanism_by_name():
    expected = Taylor(order=4, scale=0.3)(Q, K, V, causal=True)
    assert torch.equal(qkv.attend(Q, K, V, kind="taylor", causal=True, order=4, scale=0.3), expected)


@pytest.mark.parametrize("kind", ["softmax", "linear", "elu", "taylor"])
def test_weights_are_what_attend_applies(kind):
    weights = qkv.weights(Q, K, kind=kind, causal=True)
    expected = weights @ V.repeat_interleave(2, 1)
    torch.testing.assert_close(qkv.attend(Q, K, V, kind=kind, causal=True), expected)


@pytest.mark.parametrize("kind", ["taylor(order=4)", " taylor(order=4) ", Taylor(order=4)])
def test_a_kind_is_a_name_a_spec_or_an_object(kind):
    expected = Taylor(order=4)(Q, K, V, causal=True)
    assert not torch.equal(expected, Taylor()(Q, K, V, causal=True))
    assert torch.equal(qkv.attend(Q, K, V, kind=kind, causal=True), expected)
    assert torch.equal(qkv.weights(Q, K, kind=kind), Taylor(order=4).weights(Q, K))


def test_a_spec_and_options_are_joined():
    expected = Taylor(order=4, scale=0.3)(Q, K, V)
    assert torch.equal(qkv.attend(Q, K, V, "taylor(order=4)", scale=0.3), expected)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("taylor(order=4)", {"order": 2}, r"kind='taylor\(order=4\)' has order already, but order=2 is given as well"),
        (
            Taylor(order=4),
            {"scale": 2},
            r"kind=Taylor\(order=4\) already has its options; pass scale to its constructor",
        ),
        ("taylor(", {}, "must be a kind with options"),
        ("softmax", {"is_causal": True}, "is_causal is an argument of scaled_dot_product_attention; here, use causal="),
        ("taylor", {"attn_mask": None}, r"use mask= \(bool, True = attend\) or bias="),
        ("softmax", {"dropout_p": 0.1}, "use dropout= of kind softmax"),
        (Taylor(), {"enable_gqa": True}, "k and v may have fewer heads than q"),
    ],
)
def test_bad_input_of_options(kind, options, message):
    with pytest.raises(ValueError, match=message):
        qkv.attend(Q, K, V, kind=kind, **options)
    with pytest.raises(ValueError, match=message):
        qkv.weights(Q, K, kind=kind, **options)


def test_bad_input_of_a_class_as_kind():
    with pytest.raises(TypeError, match=r"kind must be a name, a spec such as .* or an Attention, got <class"):
        qkv.attend(Q, K, V, kind=Taylor)


def test_unknown_kind_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown attention kind 'tailor'; did you mean 'taylor'\?"):
        qkv.attend(Q, K, V, kind="tailor")


def test_unknown_option_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown option of attention kind 'taylor': 'oder'; did you mean 'order'\?"):
        build("taylor", oder=2)


def test_parse_a_kind_with_options():
    assert parse("softmax").kind == "softmax"
    assert parse(" taylor(order=4, chunk=7) ").order == 4
    assert parse("taylor(order=4, chunk=7)").chunk == 7


@pytest.mark.parametrize(
    "text", ["", "taylor(", "taylor(4)", "taylor(order=open('x'))", "os.system('x')", "taylor; linear"]
)
def test_parse_rejects_everything_else(text):
    with pytest.raises(ValueError, match="attention|must be a number"):
        parse(text)


def test_attend_cannot_build_additive():
    with pytest.raises(ValueError, match=r"'additive' has learned parameters.*qkv.attention.Additive\(key_dim=...\)"):
        qkv.attend(Q, K, V, kind="additive")


def test_key_dim_reaches_the_kinds_that_need_it():
    assert build("additive", key_dim=4).key.in_features == 4
    assert parse("additive", key_dim=4).key.in_features == 4
    assert parse("additive(hidden_dim=3)", key_dim=4).score.shape == (3,)
    assert parse("additive(key_dim=5)", key_dim=4).key.in_features == 5
    assert parse("taylor(order=4)", key_dim=4).order == 4
    assert repr(build("softmax", key_dim=4)) == "Softmax()"


def test_attend_takes_no_key_dim():
    with pytest.raises(ValueError, match="unknown option of attention kind 'softmax': 'key_dim'"):
        qkv.attend(Q, K, V, kind="softmax", key_dim=4)


def test_additive_has_no_scale():
    with pytest.raises(ValueError, match="unknown option of attention kind 'additive': 'scale'"):
        build("additive", key_dim=4, scale=0.5)


@pytest.mark.parametrize(("module", "examples"), [("qkv.attention", 9), ("qkv.attention.attend", 4)])
def test_docstring_examples_run(module, examples):
    assert doctest.testmod(import_module(module)) == (0, examples)
