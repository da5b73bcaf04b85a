"""Invalid input raises a ValueError or TypeError that names the argument, its value and what was expected."""

import pytest
import torch

import qkv
from qkv.attention import Additive, Elu, Linear, Softmax, Taylor

Q, K, V = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 7)


@pytest.mark.parametrize("kind", ["softmax", "linear", "elu", "taylor"])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": Q[0]}, ValueError, r"q must have 4 axes \(batch, heads, time, dim\), got shape \(6, 5, 4\)"),
        ({"k": K[..., :3]}, ValueError, "q has key_dim 4, but k has key_dim 3"),
        ({"k": K[:1]}, ValueError, "k has batch 1, but q has batch 2"),
        ({"v": V[:, :, :4]}, ValueError, r"v has \(heads, keys\) \(3, 4\), but k has \(3, 5\)"),
        ({"v": V[:, :1]}, ValueError, r"v has \(heads, keys\) \(1, 5\), but k has \(3, 5\)"),
        ({"q": Q[:, :4]}, ValueError, "q has 4 heads and k has 3: the heads of k must divide those of q"),
        ({"q": Q.long()}, TypeError, "q must be a floating-point tensor, got torch.int64"),
        ({"q": [1.0]}, TypeError, "q must be a floating-point tensor, got list"),
        ({"k": K.double()}, TypeError, "k is torch.float64 on cpu, but q is torch.float32 on cpu"),
        ({"mask": torch.ones(2, 5)}, TypeError, r"mask must be bool \(True = attend\), got torch.float32.*bias="),
        ({"mask": torch.ones(5, dtype=torch.bool)}, ValueError, r"\(batch, keys\) = \(2, 5\).*got \(5,\)"),
        ({"mask": torch.ones(1, 5, dtype=torch.bool)}, ValueError, r"\(batch, keys\) = \(2, 5\).*got \(1, 5\)"),
        ({"q": Q[:, :, :3], "causal": True}, ValueError, r"got 3 queries and 5 keys; .*step\(q, k, v, state\)"),
    ],
)
def test_wrong_shapes_and_types(kind, change, error, message):
    with pytest.raises(error, match=message):
        qkv.attend(**{"q": Q, "k": K, "v": V, **change}, kind=kind)


@pytest.mark.parametrize("mechanism", [Linear(), Elu(), Taylor()])
def test_feature_maps_take_no_pair_mask_and_no_bias(mechanism):
    with pytest.raises(ValueError, match=rf"'{mechanism.kind}' cannot take a mask of shape.*use a \(batch, keys\)"):
        mechanism(Q, K, V, mask=torch.ones(2, 6, 5, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=rf"'{mechanism.kind}' cannot take a score bias; use decay="):
        mechanism(Q, K, V, bias=torch.zeros(1, 6, 5, 5))


@pytest.mark.parametrize("mechanism", [Softmax(), Additive(4)])
def test_scored_kinds_take_no_decay(mechanism):
    with pytest.raises(ValueError, match=rf"'{mechanism.kind}' cannot take a decay; use bias="):
        mechanism(Q, K, V, causal=True, decay=torch.ones(6))


@pytest.mark.parametrize("shape", [(6, 5, 5), (2, 3, 5, 5), (2, 6, 5, 1), (3, 6, 5, 5)])
def test_bias_never_broadcasts_by_accident(shape):
    with pytest.raises(ValueError, match=r"bias must have shape \(batch or 1, heads, queries, keys\).*got"):
        Softmax()(Q, K, V, bias=torch.zeros(shape))


def test_bias_must_be_floating_point():
    with pytest.raises(TypeError, match="bias must be a floating-point tensor, got torch.bool"):
        Softmax()(Q, K, V, bias=torch.ones(1, 6, 5, 5, dtype=torch.bool))


def test_decay_needs_causal_and_a_rate_per_head():
    with pytest.raises(ValueError, match="decay needs causal=True"):
        Taylor()(Q, K, V, decay=torch.ones(6))
    with pytest.raises(ValueError, match=r"decay must be .* \(heads,\) = \(6,\), got shape \(3,\)"):
        Taylor()(Q, K, V, causal=True, decay=torch.ones(3))
    with pytest.raises(ValueError, match="got float"):
        Taylor()(Q, K, V, causal=True, decay=0.5)


def test_window_needs_causal():
    with pytest.raises(ValueError, match="window=3 ends at .*needs causal=True"):
        Softmax(window=3)(Q, K, V)
    with pytest.raises(ValueError, match="window must be at least 1.*got 0"):
        Softmax(window=0)


@pytest.mark.parametrize("kind", ["softmax", "taylor"])
def test_step_with_a_state_of_another_shape(kind):
    mechanism = qkv.attention.build(kind)
    with pytest.raises(ValueError, match="state holds"):
        mechanism.step(Q, K, V, mechanism.start(2, 6, 5, 7, key_heads=3))
    with pytest.raises(ValueError, match="state holds"):
        mechanism.step(Q, K, V, mechanism.start(3, 6, 4, 7, key_heads=3))
    begun = mechanism.start(2, 6, 4, 7, key_heads=3, dtype=torch.float64)
    _, begun = mechanism.step(Q.double(), K.double(), V.double(), begun)
    with pytest.raises(ValueError, match="state holds .*float64"):
        mechanism.step(Q, K, V, begun)


def test_step_with_a_state_of_another_kind():
    with pytest.raises(TypeError, match="state must be a RecurrentState from taylor.start.*got KVCache"):
        Taylor().step(Q, K, V, Softmax().start(2, 6, 4, 7, key_heads=3))
    with pytest.raises(TypeError, match="state must be a KVCache from softmax.start.*got RecurrentState"):
        Softmax().step(Q, K, V, Taylor().start(2, 6, 4, 7, key_heads=3))


def test_step_takes_a_padding_mask_only():
    mechanism = Softmax()
    with pytest.raises(ValueError, match=r"in step, mask must have shape \(batch, new tokens\)"):
        mechanism.step(Q, K, V, mechanism.start(2, 6, 4, 7, key_heads=3), mask=torch.ones(2, 6, 5, 5, dtype=torch.bool))


def test_decay_in_steps_needs_a_state_per_query_head():
    mechanism = Taylor()
    with pytest.raises(ValueError, match="started with key_heads=3; start it with key_heads=6"):
        mechanism.step(Q, K, V, mechanism.start(2, 6, 4, 7, key_heads=3), decay=torch.ones(6))


@pytest.mark.parametrize("kind", ["softmax", "linear", "elu", "taylor"])
def test_unknown_backend(kind):
    with pytest.raises(ValueError, match=f"attention kind '{kind}' has no backend 'warp' .available: auto"):
        qkv.attend(Q, K, V, kind=kind, backend="warp")


@pytest.mark.parametrize("kind", ["softmax", "linear", "elu", "taylor"])
def test_key_dim_zero(kind):
    with pytest.raises(ValueError, match="q and k have key_dim 0, which must be at least 1"):
        qkv.attend(Q[..., :0], K[..., :0], V, kind=kind)


def test_mask_and_bias_must_be_tensors():
    with pytest.raises(TypeError, match="mask must be a bool tensor, got list"):
        Softmax()(Q, K, V, mask=[[True] * 5] * 2)
    with pytest.raises(TypeError, match="bias must be a floating-point tensor, got list"):
        Softmax()(Q, K, V, bias=[0.0])


def test_modifiers_must_be_on_the_device_of_q():
    """A bias on the meta device once read uninitialized memory."""
    away = {"device": "meta"}
    with pytest.raises(ValueError, match="bias is on meta, but q is on cpu"):
        Softmax()(Q, K, V, bias=torch.zeros(1, 6, 5, 5, **away))
    with pytest.raises(ValueError, match="mask is on meta, but q is on cpu"):
        Softmax()(Q, K, V, mask=torch.ones(2, 5, dtype=torch.bool, **away))
    with pytest.raises(ValueError, match="decay is on meta, but q is on cpu"):
        Taylor()(Q, K, V, causal=True, decay=torch.zeros(6, **away))


@pytest.mark.parametrize("rate", [-0.1, float("nan")])
def test_decay_must_not_be_negative_or_nan(rate):
    with pytest.raises(ValueError, match=f"decay must be at least 0 for every head, got .*{rate}"):
        Taylor()(Q, K, V, causal=True, decay=torch.tensor([0.0, 1.0, 2.0, rate, 4.0, 5.0]))


@pytest.mark.parametrize("mechanism", [Softmax(), Softmax(backend="reference"), Additive(4)])
def test_bias_of_another_dtype_is_cast_and_its_nan_propagates(mechanism):
    bias = torch.randn(1, 6, 5, 5)
    torch.testing.assert_close(mechanism(Q, K, V, bias=bias.double()), mechanism(Q, K, V, bias=bias))
    bias[0, 0, 1, 2] = float("nan")
    wrong = torch.zeros(2, 6, 5, dtype=torch.bool)
    wrong[:, 0, 1] = True
    assert torch.equal(mechanism(Q, K, V, bias=bias).isnan().any(-1), wrong)
    assert torch.equal(mechanism.weights(Q, K, bias=bias).isnan().any(-1), wrong)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: Softmax(window=x), "window"),
        (lambda x: Taylor(order=x), "order"),
        (lambda x: Taylor(chunk=x), "chunk"),
        (lambda x: Linear(chunk=x), "chunk"),
    ],
)
@pytest.mark.parametrize("value", [2.5, 2.0, True, "2"])
def test_integer_options(make, name, value):
    with pytest.raises(TypeError, match=f"{name} must be an integer, got {value!r}"):
        make(value)


def test_additive_needs_positive_sizes():
    with pytest.raises(ValueError, match="key_dim and hidden_dim must be at least 1, got 0 and 0"):
        Additive(0)
    with pytest.raises(ValueError, match="got 4 and 0"):
        Additive(4, hidden_dim=0)


def test_repr_shows_options_that_are_not_default():
    assert repr(Taylor(order=4, backend="chunked")) == "Taylor(order=4, backend='chunked')"
    assert repr(Softmax(window=3, dropout=0.1)) == "Softmax(window=3, dropout=0.1)"
    assert [repr(x) for x in (Taylor(), Softmax(), Elu(), Linear())] == ["Taylor()", "Softmax()", "Elu()", "Linear()"]
