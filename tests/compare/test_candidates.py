import pytest

from qkv.compare.candidates import Grid, make_candidates, parse_specs
from tests.tasks.tiny import CHANGES


def test_settings_after_a_colon():
    softmax, taylor = parse_specs("softmax,taylor(order=2):key_dim=16;tied=False;positions=rope", "--attention")
    assert (softmax.name, softmax.settings) == ("softmax", {})
    assert taylor.name == "taylor(order=2)"
    assert taylor.settings == {"key_dim": 16, "tied": False, "positions": "rope"}


def test_attention_and_positions_make_a_product():
    found = make_candidates("recall", None, CHANGES, Grid("softmax,taylor(order=4):key_dim=4", "none,alibi"))
    assert [(c.name, c.config.model["attention"], c.config.model["positions"]) for c in found] == [
        ("softmax + none", "softmax", "none"),
        ("softmax + alibi", "softmax", "alibi"),
        ("taylor(order=4):key_dim=4 + none", "taylor(order=4)", "none"),
        ("taylor(order=4):key_dim=4 + alibi", "taylor(order=4)", "alibi"),
    ]
    assert [c.config.model["key_dim"] for c in found] == [None, None, 4, 4]
    assert all(c.config.model["dim"] == 8 and c.config.train.steps == 3 for c in found)


def test_a_pattern_of_kinds_in_brackets_is_one_candidate():
    found = make_candidates("recall", None, CHANGES, Grid("softmax,[linear,softmax],2*elu"))
    assert [c.config.model["attention"] for c in found] == ["softmax", "[linear,softmax]", "2*elu"]
    with pytest.raises(ValueError, match="unknown attention kind 'softmux'"):
        make_candidates("recall", None, CHANGES, Grid("[linear,softmux]"))


def test_positions_alone_keep_the_attention_of_the_preset():
    found = make_candidates("recall", None, CHANGES, Grid(positions="rope,none"))
    assert [(c.name, c.config.model["attention"]) for c in found] == [("rope", "softmax"), ("none", "softmax")]


def test_a_family_starts_from_the_preset_of_its_own():
    models = "recurrent:attention=none;dim=64,encoder_decoder,recurrent:attention=additive"
    plain, transformer, attending = make_candidates("pairs", None, {"train": {"steps": 5}}, Grid(models=models))
    assert (plain.config.family, plain.config.model["attention"], plain.config.model["dim"]) == (
        "recurrent",
        "none",
        64,
    )
    assert (attending.config.model["attention"], attending.config.model["dim"]) == ("additive", 192)  # of the preset
    assert (transformer.config.family, transformer.config.model["convolution"]) == ("encoder_decoder", 5)
    assert {c.config.train.steps for c in (plain, transformer, attending)} == {5}


def test_a_family_takes_the_chosen_preset_if_it_is_of_it():
    transformer, attending = make_candidates("pairs", "large", {}, Grid(models="encoder_decoder,recurrent"))
    assert transformer.config.model["encoder_layers"] == 6
    assert attending.config.model["dim"] == 192


def test_minutes_replace_the_steps_of_a_preset():
    changes = {**CHANGES, "train": {"minutes": 2.0}}
    (only,) = make_candidates("recall", None, changes, Grid("softmax"))
    assert (only.config.train.steps, only.config.train.minutes) == (None, 2.0)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (Grid("tailor"), "unknown attention kind 'tailor'; did you mean 'taylor'"),
        (Grid("taylor(oder=4)"), "did you mean 'order'"),
        (Grid("taylor(order=3)"), "order must be even"),
        (Grid("softmax", "rop"), "unknown position scheme 'rop'; did you mean 'rope'"),
        (Grid("softmax:key_dimm=4"), "did you mean 'key_dim'"),
        (Grid(models="decodr"), "unknown model 'decodr'; did you mean 'decoder'"),
        (Grid(models="recurrent:attention=aditive"), "did you mean 'additive'"),
        (Grid("softmax,,linear"), "expected names separated by commas"),
        (Grid("softmax,softmax"), "'softmax' must not occur twice"),
        (Grid("softmax:key_dim"), "expected softmax:SETTING=VALUE;SETTING=VALUE, got 'key_dim'"),
        (Grid("softmax", models="decoder"), "cannot be combined with --attention, --positions or --sizes"),
        (Grid(), "nothing to compare"),
    ],
)
def test_bad_input(grid, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make_candidates("recall", None, CHANGES, grid)


def test_a_family_for_all_and_families():
    with pytest.raises(ValueError, match="cannot be combined with --set model.family"):
        make_candidates("recall", None, {"model": {"family": "recurrent"}}, Grid(models="decoder"))


def test_sizes_are_combined_with_kinds():
    found = make_candidates("recall", None, CHANGES, Grid("softmax,linear", sizes="dim=8,dim=16;heads=2"))
    assert [(c.name, c.config.model["attention"], c.config.model["dim"], c.config.model["heads"]) for c in found] == [
        ("softmax + dim=8", "softmax", 8, 1),
        ("softmax + dim=16;heads=2", "softmax", 16, 2),
        ("linear + dim=8", "linear", 8, 1),
        ("linear + dim=16;heads=2", "linear", 16, 2),
    ]
    (only,) = make_candidates("recall", None, CHANGES, Grid(sizes="dim=24"))
    assert (only.name, only.config.model["dim"]) == ("dim=24", 24)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("dim=8,dim=8", "--sizes 'dim=8,dim=8': expected settings such as dim=64;heads=2,dim=128, each once"),
        ("dim=8,,", "--sizes 'dim=8,,': expected settings"),
        ("dim", "--sizes 'dim': expected SETTING=VALUE;SETTING=VALUE, got 'dim'"),
        ("dimm=8", "dimm"),
    ],
)
def test_bad_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        make_candidates("recall", None, CHANGES, Grid("softmax", sizes=sizes))


def test_sizes_are_not_for_families():
    with pytest.raises(ValueError, match="cannot be combined with --attention, --positions or --sizes"):
        make_candidates("recall", None, CHANGES, Grid(models="decoder", sizes="dim=8"))
