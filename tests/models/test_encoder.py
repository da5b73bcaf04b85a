import pytest
import torch
from safetensors.torch import load, save
from transformers import BertConfig, BertForPreTraining

from qkv.models import Encoder, EncoderConfig, encoder, mean_pool
from qkv.train.ema import to_cpu
from tests.models.sequences import padded

TOKENS = 19
GOES = [
    ("softmax", "none"),
    ("softmax", "sinusoidal"),
    ("softmax", "learned"),
    ("softmax", "rope"),
    ("softmax", "alibi"),
    ("softmax", "t5"),
    ("softmax", "shaw"),
    ("additive", "learned"),
    ("taylor", "rope"),
    ("taylor", "learned"),
    ("linear", "rope"),
    ("elu", "sinusoidal"),
]
BERT = {
    "embed.": "bert.embeddings.word_embeddings.",
    "positions.added.table.": "bert.embeddings.position_embeddings.",
    "segments.": "bert.embeddings.token_type_embeddings.",
    "norm.": "bert.embeddings.LayerNorm.",
    ".attention.query.": ".attention.self.query.",
    ".attention.key.": ".attention.self.key.",
    ".attention.value.": ".attention.self.value.",
    ".attention.output.": ".attention.output.dense.",
    ".around_attention.norm.": ".attention.output.LayerNorm.",
    ".feed_forward.up.": ".intermediate.dense.",
    ".feed_forward.down.": ".output.dense.",
    ".around_feed_forward.norm.": ".output.LayerNorm.",
    "pool.": "bert.pooler.dense.",
    "transform.": "cls.predictions.transform.dense.",
    "transform_norm.": "cls.predictions.transform.LayerNorm.",
    "lm_head.": "cls.predictions.decoder.",
    "next_sentence_head.": "cls.seq_relationship.",
}
"""Our prefix or middle of a name -> that of transformers."""


def small(**options):
    sizes = {"dim": 24, "heads": 3, "key_dim": 8, "hidden_dim": 40, "max_length": 17}
    return Encoder(EncoderConfig(**{**sizes, **options}), TOKENS).double().eval()


def theirs_of(name):
    """A tensor's name in transformers' BertForPreTraining."""
    start = f"{name.split('.')[0]}."
    if start != "blocks.":
        (found,) = [ours for ours in BERT if name.startswith(ours)]
        return name.replace(found, BERT[found], 1)
    (found,) = [ours for ours in BERT if ours.startswith(".") and ours in name]
    return name.replace("blocks.", "bert.encoder.layer.", 1).replace(found, BERT[found])


@pytest.fixture(scope="module")
def bert():
    """transformers' BERT with weights large enough to matter, and ours with the same."""
    torch.manual_seed(0)
    sizes = {"vocab_size": TOKENS, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = BertConfig(**sizes, intermediate_size=40, max_position_embeddings=17, attn_implementation="eager")
    theirs = BertForPreTraining(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    ours = Encoder(EncoderConfig(dim=24, heads=4, hidden_dim=40, layers=3, max_length=17), TOKENS).eval()
    given = theirs.state_dict()
    mapped = {name: given.pop(theirs_of(name)) for name in ours.state_dict()}
    ours.load_state_dict(mapped)
    assert list(given) == ["cls.predictions.bias"]  # a second name of cls.predictions.decoder.bias
    return ours, theirs


@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_bert_of_transformers_to_every_hidden_state(bert, dtype, apart):
    ours, theirs = (model.to(dtype) for model in bert)
    tokens, mask = padded(7, 13, TOKENS)
    segments = (torch.arange(13) > mask.sum(1, keepdim=True) // 2).long()
    with torch.no_grad():
        states, (said, next_) = ours.hidden_states(tokens, segments, mask), ours(tokens, segments, mask)
        expected = theirs(tokens, mask.long(), segments, output_hidden_states=True)
        pooled = theirs.bert(tokens, mask.long(), segments).pooler_output
    assert len(states) == len(expected.hidden_states) == 4
    for found, wanted in zip(states, expected.hidden_states, strict=True):
        torch.testing.assert_close(found[mask], wanted[mask], rtol=0, atol=apart)
    torch.testing.assert_close(said[mask], expected.prediction_logits[mask], rtol=0, atol=10 * apart)
    torch.testing.assert_close(next_, expected.seq_relationship_logits, rtol=0, atol=10 * apart)
    torch.testing.assert_close(ours.pool_first(states[-1]), pooled, rtol=0, atol=apart)


def test_no_segments_are_the_first_and_no_mask_is_all(bert):
    ours, theirs = (model.double() for model in bert)
    tokens = torch.randint(0, TOKENS, (5, 11))
    with torch.no_grad():
        expected = theirs.bert(tokens).last_hidden_state
        torch.testing.assert_close(ours.encode(tokens), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(ours.encode(tokens, mask=tokens > -1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [13, 5])
def test_the_same_where_masks_may_not_be_looked_at(length, monkeypatch):
    """As in a graph that is recorded: the mask stays, even one that hides nothing (as that of the second length)."""
    model = small(attention="softmax", positions="learned")
    tokens = torch.randint(0, TOKENS, (3, length))
    mask = torch.arange(length) < torch.tensor([[5], [13], [9]])
    looking = model.encode(tokens, mask=mask)
    seen = []
    monkeypatch.setattr(encoder, "values_readable", lambda mask: bool(seen.append(mask)))
    torch.testing.assert_close(model.encode(tokens, mask=mask)[mask], looking[mask], rtol=0, atol=1e-12)
    assert len(seen) == 1


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("norm", ["after", "before"])
@pytest.mark.parametrize(("attention", "positions"), GOES)
def test_a_row_alone_equals_itself_padded(attention, positions, norm, first):
    model = small(attention=attention, positions=positions, norm=norm)
    tokens, mask = padded(7, 13, TOKENS, first=first)
    segments = torch.randint(0, 2, tokens.shape)
    together = model.encode(tokens, segments, mask)
    follows = model(tokens, segments, mask)[1]
    means = mean_pool(together, mask)
    for row in range(7):
        own = mask[row]
        alone = model.encode(tokens[row, own][None], segments[row, own][None])
        torch.testing.assert_close(alone[0], together[row, own], rtol=0, atol=1e-12)
        torch.testing.assert_close(alone[0].mean(0), means[row], rtol=0, atol=1e-12)
        torch.testing.assert_close(mean_pool(alone)[0], means[row], rtol=0, atol=1e-12)
        follow = model(tokens[row, own][None], segments[row, own][None])[1]
        torch.testing.assert_close(follow[0], follows[row], rtol=0, atol=1e-12)


def test_every_token_sees_all_others():
    model = small()
    tokens = torch.randint(4, TOKENS, (1, 13))
    changed = tokens.clone()
    changed[0, -1] = 3 + (changed[0, -1] - 2) % (TOKENS - 4)
    assert (model.encode(tokens) - model.encode(changed)).abs().amax(-1).min() > 1e-6


def test_logits_where_they_are_wanted():
    model = small()
    tokens, at = torch.randint(0, TOKENS, (5, 13)), torch.rand(5, 13) < 0.3
    whole, some = model(tokens), model(tokens, at=at)
    torch.testing.assert_close(some[0], whole[0][at], rtol=0, atol=1e-12)
    torch.testing.assert_close(some[1], whole[1], rtol=0, atol=0)


@pytest.mark.parametrize("norm", ["after", "before"])
def test_the_last_state_is_normed(norm):
    """Its vectors have mean 0 and deviation 1, wherever blocks norm."""
    last = small(norm=norm).encode(torch.randint(0, TOKENS, (5, 13)))
    torch.testing.assert_close(last.mean(-1), torch.zeros(5, 13).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(last.std(-1, correction=0), torch.ones(5, 13).double(), rtol=0, atol=1e-9)


def test_without_heads_it_gives_vectors():
    model = small(pretraining=False)
    tokens = torch.randint(0, TOKENS, (5, 13))
    vectors, pooled = model(tokens)
    torch.testing.assert_close(vectors, model.encode(tokens))
    assert pooled.shape == (5, 24)
    assert not [name for name in model.state_dict() if name.startswith(("transform", "lm_head", "next_sentence_head"))]
    with pytest.raises(ValueError, match="no head for masked tokens; build it with pretraining=True"):
        model.token_logits(vectors)


def test_every_parameter_gets_a_gradient_and_is_counted():
    """2 blocks, each 4 (24 x 24 + 24) + 24 x 40 + 40 + 40 x 24 + 24 + 2 x 48; tables of 19, 17 and 2; two norms.

    Then pooling and transform, each 24 x 24 + 24, a bias a token and 2 x 24 + 2.
    """
    model = small()
    said, next_ = model(torch.randint(0, TOKENS, (5, 13)), torch.randint(0, 2, (5, 13)))
    (said.square().sum() + next_.square().sum()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    expected = 2 * (4 * 600 + 1984 + 96) + (19 + 17 + 2) * 24 + 2 * 48 + 2 * 600 + 19 + 50
    assert sum(p.numel() for p in model.parameters()) == expected


def test_tokens_are_not_drowned_by_waves():
    """Half of what is summed at the start is the token, whether places are learned or waves of size 1."""
    torch.manual_seed(0)
    tokens = torch.arange(TOKENS - 2)[None]
    for positions in ("learned", "sinusoidal"):
        model = small(dim=240, positions=positions)
        summed, other = (model._embed(x, None, None, None) for x in (tokens, tokens.roll(1, 1)))
        assert ((summed - other).std() / summed.std()).item() > 0.7


def test_a_tied_table_survives_a_round_trip():
    model, other = small(), small()
    other.load_state_dict(load(save(to_cpu(model.state_dict()))))
    tokens = torch.randint(0, TOKENS, (5, 13))
    torch.testing.assert_close(other(tokens), model(tokens), rtol=0, atol=0)
    assert other.lm_head.weight is other.embed.weight


def test_a_row_of_padding_has_the_vector_0():
    x, mask = torch.randn(3, 5, 7), torch.tensor([[True] * 5, [False] * 5, [True, False, False, False, False]])
    found = mean_pool(x, mask)
    torch.testing.assert_close(found, torch.stack((x[0].mean(0), torch.zeros(7), x[2, 0])))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"norm": "befor"}, "unknown norm 'befor'; did you mean 'before'"),
        ({"epsilon": 0.0}, "epsilon must be more than 0, got 0.0"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        (
            {"attention": "taylor", "positions": "t5"},
            "'t5' give a bias.*; for 'taylor' use learned, rope, sinusoidal$",
        ),
        (
            {"attention": "elu", "positions": "alibi"},
            "fade the past.*; for 'elu' in an encoder use learned, sinusoidal$",
        ),
        ({"attention": "softmax(window=4)"}, "attention has window=4, but an encoder is bidirectional; leave it out"),
        (
            {"key_dim": 7, "positions": "rope"},
            "positions 'rope' rotate pairs of channels, so key_dim must be even, got 7",
        ),
    ],
)
def test_wrong_sizes(options, match):
    with pytest.raises(ValueError, match=match):
        small(**options)


def test_rows_without_tokens():
    none = torch.zeros(2, 0, dtype=torch.int64)
    assert small().encode(none).shape == (2, 0, 24)
    with pytest.raises(ValueError, match=r"rows must have at least one token to be pooled, got .* \(2, 0, 24\)"):
        small()(none)


def test_too_long():
    with pytest.raises(ValueError, match="a sequence of 18 exceeds max_length=17"):
        small()(torch.zeros(2, 18, dtype=torch.int64))
