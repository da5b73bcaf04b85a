import pytest
import torch

from qkv.attention import Additive, Elu, Linear, Softmax, Taylor
from qkv.attention.contract.cases import Case, draw_inputs
from qkv.explain import AttentionCall, observe, trace_token
from qkv.explain.activations import AttentionRecord, AttentionSite
from qkv.models import Decoder, DecoderConfig


def call(attention, **options):
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, 1, 7, d, dtype=torch.float64) for d in (5, 5, 3))
    attention = attention.double()
    with torch.no_grad():
        return AttentionCall(attention, q, k, v, options, attention(q, k, v, **options))


KINDS = [Softmax(), Softmax(scale=0.3), Taylor(), Taylor(order=4), Linear(), Elu(), Additive(5, 11)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", KINDS, ids=lambda a: a.kind)
def test_the_steps_end_at_the_models_output(attention, causal):
    one = call(attention, causal=causal)
    for query in (0, 3, 6):
        found = trace_token(one, query)
        torch.testing.assert_close(found.output, one.output[0, 0, query], rtol=0, atol=1e-12)
        torch.testing.assert_close(found.weights, one.weights()[0, 0, query].detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(found.products.sum(-1) * found.scale, found.scores)
        assert found.masked.tolist() == [causal and key > query for key in range(7)]


def test_softmax_by_hand():
    """Two keys, scores 2 and 0: weights e^2 / (e^2 + 1) and the rest."""
    q, k = torch.tensor([[[[2.0, 0.0]]]]), torch.tensor([[[[1.0, 5.0], [0.0, 1.0]]]])
    v = torch.tensor([[[[1.0], [3.0]]]])
    found = trace_token(AttentionCall(Softmax(scale=1.0), q, k, v, {}, Softmax(scale=1.0)(q, k, v)), 0)
    assert found.products.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert found.scores.tolist() == [2.0, 0.0]
    assert found.max_score == 2.0
    assert found.unnormalized.tolist() == pytest.approx([1.0, 0.1353352832366127])
    assert found.weights.tolist() == pytest.approx([0.8807970779778823, 0.11920292202211755])
    assert found.output.tolist() == pytest.approx([1.2384058440442351])


@pytest.mark.parametrize("window", [1, 3])
def test_a_window_hides_the_distant_past(window):
    found = trace_token(call(Softmax(window=window), causal=True), 4)
    assert found.masked.tolist() == [not 4 - window < key <= 4 for key in range(7)]


@pytest.mark.parametrize(
    ("kind", "positions"), [("softmax", "alibi"), ("softmax", "t5"), ("taylor", "alibi"), ("softmax", "rope")]
)
def test_what_positions_add(kind, positions):
    model = Decoder(DecoderConfig(dim=12, heads=3, layers=1, attention=kind, positions=positions, max_length=9), 11)
    (record,) = observe(model.double(), [4, 9, 6, 5, 8])
    assert record.site.positions == positions
    for head in range(3):
        found = trace_token(record.head(head), 3)
        torch.testing.assert_close(found.output, record.head(head).output[0, 0, 3], rtol=0, atol=1e-12)
    changed = bool(found.bias.any()) or bool((found.decay != 1).any())
    assert changed == (positions != "rope")


def test_bad_input():
    with pytest.raises(ValueError, match="query must be from 0 to 6, got 7"):
        trace_token(call(Softmax()), 7)


@pytest.mark.parametrize("modifier", ["gate", "channel_gate"])
def test_a_gated_call_is_traced(modifier):
    """A call with a gate, padding and documents; the trace of a channel gate has the definition's weights only."""
    linear = Linear()
    case = Case(batch=1, modifier=modifier, key_head_gate=True, masked=True, documents=True)
    x = draw_inputs(case, linear)
    site = AttentionSite("layer 1", "target", "target", linear)
    record = AttentionRecord(
        site, AttentionCall(linear, x.q, x.k, x.v, x.modifiers, linear(x.q, x.k, x.v, **x.modifiers))
    )
    for head in range(case.heads):
        traced = trace_token(record.head(head), 9)
        torch.testing.assert_close(traced.output, record.call.output[0, head, 9], rtol=1e-12, atol=1e-12)
