from itertools import pairwise

import pytest
import torch
from safetensors.torch import load, save

from qkv.attention import kinds
from qkv.layers import Packing, pack_documents
from qkv.layers import packing as packing_module
from qkv.models import Decoder, DecoderConfig
from qkv.positions import schemes
from qkv.train.ema import to_cpu
from tests.models.sequences import padded, walk
from tests.models.states import advance, check_forked, check_independent, check_saved

TOKENS = 19
GOES = [
    ("softmax", "none"),
    ("softmax", "sinusoidal"),
    ("softmax", "learned"),
    ("softmax", "rope"),
    ("softmax", "alibi"),
    ("softmax", "t5"),
    ("softmax", "shaw"),
    ("softmax(window=3)", "rope"),
    ("additive", "t5"),
    ("taylor", "rope"),
    ("taylor", "alibi"),
    ("taylor", "learned"),
    ("linear", "rope"),
    ("linear", "alibi"),
    ("elu", "sinusoidal"),
    ("elu", "alibi"),
    ("linear,softmax", "alibi"),
    ("softmax(window=3),taylor", "rope"),
]


def small(**options):
    sizes = {"dim": 24, "heads": 3, "key_dim": 8, "hidden_dim": 40, "max_length": 17, "convolution": 3}
    return Decoder(DecoderConfig(**{**sizes, **options}), TOKENS).double().eval()


@pytest.mark.parametrize(("attention", "positions"), GOES)
def test_token_by_token_equals_all_at_once(attention, positions):
    model = small(attention=attention, positions=positions)
    tokens = torch.randint(0, TOKENS, (5, 13))
    expected = model(tokens)
    nothing = tokens[:, :0]
    torch.testing.assert_close(walk(model, model.start(nothing, None), tokens), expected, rtol=0, atol=1e-12)
    continued = walk(model, model.start(tokens[:, :6], None), tokens[:, 6:])
    torch.testing.assert_close(continued, expected[:, 6:], rtol=0, atol=1e-12)


def test_logits_where_they_are_wanted():
    model = small()
    tokens, at = torch.randint(0, TOKENS, (5, 13)), torch.rand(5, 13) < 0.3
    torch.testing.assert_close(model(tokens, at=at), model(tokens)[at], rtol=0, atol=1e-12)


def test_tokens_enter_and_are_predicted_with_numbers_of_size_one():
    """Whatever the width: neither the first attention nor the tie to the prediction depends on it."""
    torch.manual_seed(0)
    for dim in (24, 216):
        model = small(dim=dim, layers=1)
        read = model._embed(torch.arange(TOKENS)[:, None], 0, None, None)
        predicted = model.lm_head(model.norm(torch.randn(70, dim).double()))
        assert read.std().item() == pytest.approx(1, rel=0.15)
        assert predicted.std().item() == pytest.approx(1, rel=0.25)


@pytest.mark.parametrize(("attention", "positions"), GOES)
def test_a_prompt_padded_at_its_start(attention, positions):
    """It is continued as in one parallel pass with the same mask, and as each row would be alone."""
    model = small(attention=attention, positions=positions)
    prompt, mask = padded(7, 6, TOKENS, first=True)
    rest = torch.randint(4, TOKENS, (7, 5))
    whole = model(torch.cat((prompt, rest), 1), torch.cat((mask, rest > 0), 1))
    continued = walk(model, model.start(prompt, mask), rest)
    torch.testing.assert_close(continued, whole[:, 6:], rtol=0, atol=1e-12)
    for row, length in enumerate(mask.sum(1)):
        alone = model(torch.cat((prompt[row, 6 - length :], rest[row]))[None])
        torch.testing.assert_close(alone[0, length:], whole[row, 6:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("positions", ["sinusoidal", "rope"])
def test_a_row_alone_equals_itself_padded_at_its_end(positions):
    model = small(positions=positions)
    tokens, mask = padded(7, 13, TOKENS)
    masked, unmasked = model(tokens, mask), model(tokens)
    for row, length in enumerate(mask.sum(1)):
        alone = model(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(alone, masked[row, :length], rtol=0, atol=1e-12)
        torch.testing.assert_close(alone, unmasked[row, :length], rtol=0, atol=1e-12)


def test_a_state_can_be_reordered():
    model = small(positions="learned")
    prompt, mask = padded(4, 6, TOKENS, first=True)
    rows = torch.tensor([2, 0, 2])
    chosen = model.start(prompt, mask).select(rows)
    following = torch.randint(4, TOKENS, (3, 4))
    expected = walk(model, model.start(prompt[rows], mask[rows]), following)
    torch.testing.assert_close(walk(model, chosen, following), expected, rtol=0, atol=1e-12)


def test_a_prompt_padded_at_its_end_is_refused():
    prompt, mask = padded(4, 6, TOKENS)
    mask[1, -1] = False
    with pytest.raises(ValueError, match="mask must be True at the last tokens of each row"):
        small().start(prompt, mask)


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_gets_a_gradient_and_is_counted(tied):
    """2 blocks of 4 (24 x 24 + 24) + 24 x 40 + 40 + 40 x 24 + 24 + 3 x 24 taps + 2 x 48, a norm, 1 or 2 tables."""
    model = small(tied=tied)
    model(torch.randint(0, TOKENS, (5, 13))).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    expected = 2 * (4 * 600 + 1984 + 72 + 96) + 48 + TOKENS * 24 * (1 if tied else 2)
    assert sum(p.numel() for p in model.parameters()) == expected == (9608 if tied else 10064)


def test_tied_weights_are_saved_and_stay_tied():
    model, other = small(tied=True), small(tied=True)
    other.load_state_dict(load(save(to_cpu(model.state_dict()))))
    assert other.lm_head.weight is other.embed.weight
    tokens = torch.randint(0, TOKENS, (2, 7))
    assert torch.equal(model(tokens), other(tokens))


def test_too_long_a_sequence_is_refused():
    model, words = small(), torch.full((1, 18), 5)
    for call in (model, lambda tokens: model.start(tokens, None)):
        with pytest.raises(ValueError, match="a sequence of 18 exceeds max_length=17"):
            call(words)
    with pytest.raises(ValueError, match="a sequence of 18 exceeds max_length=17"):
        walk(model, model.start(words[:, :9], None), words[:, 9:])


def test_bytes_of_the_state():
    """Two blocks: 5 keys and 5 values of 3 x 8 float64 numbers, and the last 2 tokens of a convolution of 3."""
    state = small(positions="rope").start(torch.randint(0, TOKENS, (2, 5)), None)
    assert state.bytes == 2 * 8 * (2 * 2 * 5 * 24 + 2 * 2 * 24)


def every_pair():
    """Each kind with each scheme that serves it, and with none."""
    return [
        (kind, scheme)
        for kind in ("softmax", "additive", "linear", "elu", "taylor")
        for scheme in ("none", "sinusoidal", "learned", "rope", "alibi", "t5", "shaw")
        if scheme == "none" or schemes[scheme].serves(kinds[kind].accepts)
    ]


def gradients(model, logits):
    model.zero_grad()
    (logits * torch.linspace(-1, 1, TOKENS).double()).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("masked_on", ["cuda", "cpu"])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize(
    ("attention", "positions"), [*every_pair(), ("softmax(window=3)", "rope"), ("linear,softmax", "rope")]
)
def test_packed_documents_mean_what_each_means_alone(attention, positions, short, masked_on, monkeypatch):
    """Values and gradients; documents of 1 to 13 tokens, cut by the ends of rows; short ones are all taken out."""
    monkeypatch.setattr(packing_module, "MASK_DEVICE", masked_on)
    model = small(attention=attention, positions=positions)
    tokens = torch.randint(0, TOKENS, (3, 13))
    starts = torch.zeros(3, 13, dtype=torch.bool)
    starts[0, [2, 3, 7]] = starts[1, 12] = True  # 2, 1, 4, 6 tokens; 12 and 1; 13
    if short:
        starts[2, [1, 4, 5]] = starts[1, 3] = True
    packing = pack_documents(starts)
    packed = model(tokens, packing=packing)
    own = gradients(model, packed)
    starts[:, 0] = True
    firsts = [*starts.flatten().nonzero()[:, 0].tolist(), 39]
    documents = [tokens.flatten()[a:b] for a, b in pairwise(firsts)]
    assert (packing.token_index.numel() == tokens.numel()) == short
    alone = torch.cat([model(document[None])[0] for document in documents])
    torch.testing.assert_close(packed.flatten(0, 1), alone, rtol=0, atol=1e-12)
    for name, expected in gradients(model, alone).items():
        size = float(expected.abs().max())
        torch.testing.assert_close(own[name], expected, rtol=0, atol=1e-12 * max(size, 1), msg=name)


def test_packed_rows_where_logits_are_wanted():
    model = small()
    tokens, at = torch.randint(0, TOKENS, (3, 13)), torch.rand(3, 13) < 0.3
    packing = pack_documents(torch.rand(3, 13) < 0.3)
    torch.testing.assert_close(model(tokens, at=at, packing=packing), model(tokens, packing=packing)[at])
    with pytest.raises(ValueError, match="a sequence of 18 exceeds max_length=17"):
        model(torch.full((1, 18), 5), packing=pack_documents(torch.rand(1, 18) < 0.5))


def test_packed_rows_under_a_mask_are_one_graph(monkeypatch):
    """Nothing asks a tensor for a number, which a compiler could not follow; rows of another length need no other."""
    monkeypatch.setattr(packing_module, "MASK_DEVICE", "cpu")
    model = small(positions="rope", convolution=0)

    def run(tokens, *packed):
        return model(tokens, packing=Packing.from_tensors(packed))

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="eager", fullgraph=True, dynamic=True)
    for rows, time in ((3, 13), (2, 11)):
        starts = torch.zeros(rows, time, dtype=torch.bool)
        starts[:, 5] = starts[0, 7] = True
        given = torch.randint(0, TOKENS, (rows, time)), *pack_documents(starts).tensors
        with torch._dynamo.config.patch(error_on_recompile=True):
            found = compiled(*given)
        torch.testing.assert_close(found, run(*given))


SPECS = [
    ("softmax(window=3)", "rope"),
    ("softmax(window=3)", "t5"),
    ("softmax+forget+output", "rope"),
    ("linear+channel(rank=3)+output", "none"),
    ("taylor+forget", "rope"),
    ("delta+forget+write", "none"),
    ("delta+channel(rank=3)+write(largest=2)+convolution(width=3)", "none"),
    ("2*delta+write,softmax(window=4)", "rope"),
]
"""Layers whose states have more parts than keys and values, or sums."""
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}


def every_state():
    """Each registered kind with each scheme that serves it and with none, and the layers of SPECS."""
    pairs = [(kind, scheme) for kind in kinds for scheme in schemes if schemes[scheme].serves(kinds[kind].accepts)]
    return [*pairs, *((kind, "none") for kind in kinds), *SPECS]


def tiny(attention, positions, dtype=torch.float64):
    convolution = 0 if "convolution" in attention else 3
    layers = 3 if "," in attention else 2
    sizes = {"dim": 12, "heads": 2, "key_dim": 4, "hidden_dim": 10, "max_length": 31, "layers": layers}
    config = DecoderConfig(**sizes, attention=attention, positions=positions, convolution=convolution)
    model = Decoder(config, TOKENS).to(dtype).eval()
    torch.nn.init.normal_(model.lm_head.weight)  # so that no two tokens are nearly as likely
    return model


def prompts(model, *lengths):
    """One state for each length."""
    with torch.inference_mode():
        return [model.start(torch.randint(4, TOKENS, (1, length)), None) for length in lengths]


def ragged(model):
    """The state of three rows: one is joined, and one began with padding."""
    prompt, mask = padded(2, 5, TOKENS, first=True)
    with torch.inference_mode():
        return model.start(prompt, mask).join(*prompts(model, 7))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("attention", "positions"), every_state())
def test_a_saved_state_continues_with_the_same_bits(attention, positions, dtype, tmp_path):
    model = tiny(attention, positions, dtype)
    check_saved(model, ragged(model), torch.randint(4, TOKENS, (3, 5)), tmp_path / "x.safetensors")


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("attention", "positions"), every_state())
def test_a_row_does_not_depend_on_the_others(attention, positions, dtype):
    """The third row is longer than all before it, and the last one is empty at its start."""
    model = tiny(attention, positions, dtype)
    check_independent(model, prompts(model, 7, 2, 12, 0), BOUNDS[dtype])


@pytest.mark.parametrize(("attention", "positions"), [*SPECS, ("softmax", "rope"), ("taylor", "learned")])
def test_forks_do_not_disturb_each_other(attention, positions):
    model = tiny(attention, positions)
    check_forked(model, ragged(model), *torch.randint(4, TOKENS, (2, 3, 5)))


@pytest.mark.parametrize(("attention", "positions"), [("softmax+forget", "rope"), ("taylor", "alibi"), SPECS[-2]])
def test_a_state_moves_to_a_model_of_another_precision(attention, positions):
    model = tiny(attention, positions, torch.float32)
    state, tokens = ragged(model), torch.randint(4, TOKENS, (3, 5))
    narrow, _ = advance(model, state.fork(), tokens)
    wide, last = advance(model.double(), state.to(dtype=torch.float64), tokens)
    torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=1e-5)
    assert {x.dtype for x in last.tensors().values() if x.is_floating_point()} == {torch.float64}
    assert {x.device.type for x in state.to("meta").tensors().values() if x.dim()} == {"meta"}


@pytest.mark.parametrize("attention", ["softmax", "taylor"])
def test_a_prompt_in_pieces_is_the_prompt(attention):
    model = tiny(attention, "rope")
    tokens = torch.randint(4, TOKENS, (2, 13))
    state = model.prefill(tokens[:, :5], model.start(tokens[:, :0], None))
    logits, state = model.extend(tokens[:, 5:], state)
    torch.testing.assert_close(logits, model(tokens)[:, 5:], rtol=0, atol=1e-12)
    assert (state.rows, state.length, state.lengths) == (2, 13, [13, 13])


def test_padding_of_a_state():
    model = tiny("softmax", "rope")
    state = ragged(model)
    start = state.lengths
    assert (state.rows, state.length, max(start), state.padding.tolist()) == (3, 7, 7, [7 - n for n in start])
    shorter = state.select(torch.tensor([0, 1]))
    assert (shorter.length, shorter.compact().length, shorter.compact().lengths) == (7, 5, start[:2])
    assert shorter.compact().blocks[0].attention.keys.shape[2] == 5
    only = state.select(torch.tensor([2])).compact()
    assert (only.padding, only.blocks[1].attention.mask) == (None, None)  # attention without a mask is faster
    assert only.compact() is only
    nobody = state.select(torch.tensor([], dtype=torch.long))
    assert (nobody.rows, nobody.lengths, nobody.compact().rows) == (0, [], 0)
    assert nobody.join(*prompts(model, 3)).compact().length == 3


@pytest.mark.parametrize("count", [-1, 3])
def test_bad_input_only_padding_is_dropped(count):
    model = tiny("taylor", "rope")
    joined = prompts(model, 5)[0].join(*prompts(model, 3)).select(torch.tensor([1]))
    with pytest.raises(ValueError, match=f"count must be from 0 to 2, the least padding of a row, got {count}"):
        joined.drop_places(count)
    with pytest.raises(ValueError, match="count must be from 0 to 0, the least padding of a row, got 1"):
        prompts(model, 5)[0].drop_places(1)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"layers": 1}, r"they have \[2, 1\] blocks"),
        ({"attention": "taylor"}, "they are of classes KVCache and RecurrentState"),
        ({"dim": 16, "key_dim": 6}, r"keys of one has shape \(1, 2, 3, 4\).*, that of another \(1, 2, 3, 6\)"),
        ({"convolution": 0}, "1 of 2 have a convolution"),
        ({"convolution": 5}, r"convolution of one has shape \(1, 2, 12\).*, that of another \(1, 4, 12\)"),
    ],
)
def test_bad_input_states_of_different_models_are_not_joined(other, message):
    sizes = {"dim": 12, "heads": 2, "key_dim": 4, "layers": 2, "convolution": 3, "attention": "softmax"}
    models = [Decoder(DecoderConfig(**{**sizes, **options}), TOKENS).eval() for options in ({}, other)]
    with pytest.raises(ValueError, match="states cannot be joined: .*" + message):
        prompts(models[0], 3)[0].join(*prompts(models[1], 3))


def test_bad_input_states_of_different_precision_are_not_joined():
    first, second = (prompts(tiny("linear", "rope", dtype), 3)[0] for dtype in BOUNDS)
    with pytest.raises(ValueError, match=r"kv_sum of one has .* torch.float32 on cpu, .* torch.float64 on cpu"):
        first.join(second)
