"""A new kind needs only what CONTRIBUTING.md lists."""

import pytest
import torch

from qkv.attention import Attention, FeatureMap, Scored, check, kinds
from qkv.cost import Cost
from qkv.layers import MultiHead
from qkv.positions import Rope


class Squared(FeatureMap):
    """Attention weighted by q^2.k^2, elementwise squares."""

    def similarity(self, q, k):
        return q**2 @ (k**2).transpose(-1, -2)

    def features(self, x):
        return x**2

    def feature_dim(self, key_dim):
        return key_dim

    def default_scale(self, key_dim):
        return 1.0


class Distance(Scored):
    """Attention scored by minus the squared distance."""

    def scores(self, q, k):
        return -((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1)

    def prepare_keys(self, k):
        return k

    def attend(self, q, k, v, score_mask):
        return self.reference_output(q, k, v, score_mask)

    def cost(self, shape):
        pairs = shape.rows * shape.queries * shape.keys * shape.value_dim
        held = shape.key_rows * shape.keys * shape.element_bytes
        return Cost(
            needed={"values": pairs},
            executed={"values": pairs},
            state={"keys": held * shape.key_dim, "values": held * shape.value_dim},
        )


every_family = pytest.mark.parametrize("family", [Squared, Distance])


@every_family
def test_a_new_kind_satisfies_the_contract(family):
    results = check(family())
    assert len(results) > 10
    assert [result for result in results if not result.ok] == []
    assert {result.kind for result in results} == {family.__name__}


@every_family
def test_an_unregistered_kind_works_in_multi_head_and_errors_name_its_class(family):
    heads, x = MultiHead(8, 2, family()), torch.randn(2, 5, 8)
    state, steps = heads.start(2), []
    for position in range(5):
        out, state = heads.step(x[:, position : position + 1], state)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, 1), heads(x, causal=True))
    with pytest.raises(ValueError, match=f"attention kind '{family.__name__}' does not accept here"):
        MultiHead(8, 2, family(), Rope())
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(TypeError, match=rf"from {family.__name__}.start\(\), got NoneType"):
        family().step(q, q, q, None)


@every_family
def test_a_registered_kind_is_found_by_name(family, monkeypatch):
    monkeypatch.setattr(kinds, "_classes", dict(kinds._classes))
    named = type("Named", (family,), {})
    kinds.register("yours")(named)
    assert kinds["yours"].example(4).kind == named.kind == "yours"
    assert repr(named()) == "Named()"


def test_multi_head_rejects_other_objects():
    for given in ("softmax", Squared, None):
        with pytest.raises(TypeError, match=r"attention must be a mechanism.*build\('softmax'\), got"):
            MultiHead(8, 2, given)
    assert isinstance(Squared(), Attention)
