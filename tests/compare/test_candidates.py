import pytest

from qkv.compare.candidates import Field, enter, parse_specs, split_outside
from tests.tasks.tiny import CHANGES


def test_only_outer_commas_part():
    assert split_outside("softmax, taylor(order=4, scale=1),linear", ",") == [
        "softmax",
        "taylor(order=4, scale=1)",
        "linear",
    ]


def test_settings_after_a_colon():
    softmax, taylor = parse_specs("softmax,taylor(order=2):key_dim=16;tied=False;positions=rope", "--attention")
    assert (softmax.name, softmax.settings) == ("softmax", {})
    assert taylor.name == "taylor(order=2)"
    assert taylor.settings == {"key_dim": 16, "tied": False, "positions": "rope"}


def test_attention_and_positions_make_a_product():
    found = enter("recall", None, CHANGES, Field("softmax,taylor(order=4):key_dim=4", "none,alibi"))
    assert [(c.name, c.config.model["attention"], c.config.model["positions"]) for c in found] == [
        ("softmax + none", "softmax", "none"),
        ("softmax + alibi", "softmax", "alibi"),
        ("taylor(order=4):key_dim=4 + none", "taylor(order=4)", "none"),
        ("taylor(order=4):key_dim=4 + alibi", "taylor(order=4)", "alibi"),
    ]
    assert [c.config.model["key_dim"] for c in found] == [None, None, 4, 4]
    assert all(c.config.model["dim"] == 8 and c.config.train.steps == 3 for c in found)


def test_positions_alone_keep_the_attention_of_the_preset():
    found = enter("recall", None, CHANGES, Field(positions="rope,none"))
    assert [(c.name, c.config.model["attention"]) for c in found] == [("rope", "softmax"), ("none", "softmax")]


def test_a_family_starts_from_the_preset_of_its_own():
    models = "recurrent:attention=none;dim=64,encoder_decoder,recurrent:attention=additive"
    plain, transformer, looking = enter("pairs", None, {"train": {"steps": 5}}, Field(models=models))
    assert (plain.config.family, plain.config.model["attention"], plain.config.model["dim"]) == (
        "recurrent",
        "none",
        64,
    )
    assert (looking.config.model["attention"], looking.config.model["dim"]) == ("additive", 192)  # of the preset
    assert (transformer.config.family, transformer.config.model["convolution"]) == ("encoder_decoder", 5)
    assert {c.config.train.steps for c in (plain, transformer, looking)} == {5}


def test_a_family_takes_the_chosen_preset_if_it_is_of_it():
    transformer, looking = enter("pairs", "large", {}, Field(models="encoder_decoder,recurrent"))
    assert transformer.config.model["encoder_layers"] == 6
    assert looking.config.model["dim"] == 192


def test_minutes_replace_the_steps_of_a_preset():
    changes = {**CHANGES, "train": {"minutes": 2.0}}
    (only,) = enter("recall", None, changes, Field("softmax"))
    assert (only.config.train.steps, only.config.train.minutes) == (None, 2.0)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Field("tailor"), "unknown attention kind 'tailor'; did you mean 'taylor'"),
        (Field("taylor(oder=4)"), "did you mean 'order'"),
        (Field("taylor(order=3)"), "order must be even"),
        (Field("softmax", "rop"), "unknown position scheme 'rop'; did you mean 'rope'"),
        (Field("softmax:key_dimm=4"), "did you mean 'key_dim'"),
        (Field(models="decodr"), "unknown model 'decodr'; did you mean 'decoder'"),
        (Field(models="recurrent:attention=aditive"), "did you mean 'additive'"),
        (Field("softmax,,linear"), "expected names separated by commas"),
        (Field("softmax,softmax"), "'softmax' is there twice"),
        (Field("softmax:key_dim"), "expected softmax:SETTING=VALUE;SETTING=VALUE, got 'key_dim'"),
        (Field("softmax", models="decoder"), "leave out --attention and --positions"),
        (Field(), "nobody to compare"),
    ],
)
def test_bad_input(field, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        enter("recall", None, CHANGES, field)


def test_a_family_for_all_beside_families():
    with pytest.raises(ValueError, match="leave out --set model.family"):
        enter("recall", None, {"model": {"family": "recurrent"}}, Field(models="decoder"))
