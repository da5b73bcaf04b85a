"""Bad input: each a ValueError or TypeError that names the argument, what came and what was expected."""

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


def test_bias_must_be_a_number():
    with pytest.raises(TypeError, match="bias must be a floating-point tensor, got torch.bool"):
        Softmax()(Q, K, V, bias=torch.ones(1, 6, 5, 5, dtype=torch.bool))


def test_decay_needs_an_order_and_a_rate_per_head():
    with pytest.raises(ValueError, match="decay needs causal=True"):
        Taylor()(Q, K, V, decay=torch.ones(6))
    with pytest.raises(ValueError, match=r"decay must be .* \(heads,\) = \(6,\), got shape \(3,\)"):
        Taylor()(Q, K, V, causal=True, decay=torch.ones(3))
    with pytest.raises(ValueError, match="got float"):
        Taylor()(Q, K, V, causal=True, decay=0.5)


def test_window_needs_an_order():
    with pytest.raises(ValueError, match="window=3 looks back.*needs causal=True"):
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
    with pytest.raises(TypeError, match="state must be a Memory from taylor.start.*got KeyValues"):
        Taylor().step(Q, K, V, Softmax().start(2, 6, 4, 7, key_heads=3))
    with pytest.raises(TypeError, match="state must be a KeyValues from softmax.start.*got Memory"):
        Softmax().step(Q, K, V, Taylor().start(2, 6, 4, 7, key_heads=3))


def test_step_takes_a_padding_mask_only():
    mechanism = Softmax()
    with pytest.raises(ValueError, match=r"in step, mask must have shape \(batch, new tokens\)"):
        mechanism.step(Q, K, V, mechanism.start(2, 6, 4, 7, key_heads=3), mask=torch.ones(2, 6, 5, 5, dtype=torch.bool))


def test_decay_in_steps_needs_a_memory_per_query_head():
    mechanism = Taylor()
    with pytest.raises(ValueError, match="started with key_heads=3; start it with key_heads=6"):
        mechanism.step(Q, K, V, mechanism.start(2, 6, 4, 7, key_heads=3), decay=torch.ones(6))


@pytest.mark.parametrize("kind", ["softmax", "linear", "elu", "taylor"])
def test_a_backend_that_is_not_there(kind):
    with pytest.raises(ValueError, match=f"backend 'warp' is not there for attention kind '{kind}' .there are: auto"):
        qkv.attend(Q, K, V, kind=kind, backend="warp")
