"""Sizes are checked on the meta device: against a file, and against memory."""

import os
from dataclasses import replace

import pytest
import torch

from qkv.models import family
from qkv.models.size_check import build_on_meta, count_parameters, find_mismatch, require_memory
from qkv.storage.safetensors_header import TensorHeader

FAMILIES = {
    "decoder": ({"dim": 8, "heads": 2, "hidden_dim": 12, "layers": 7}, (11,)),
    "encoder_decoder": ({"dim": 8, "heads": 2, "encoder_layers": 5, "decoder_layers": 4}, (11, 13)),
    "encoder": ({"dim": 8, "heads": 2, "layers": 1}, (11,)),
    "recurrent": ({"dim": 8, "layers": 5}, (11, 13)),
    "network": ({"hidden_dim": 6, "layers": 9}, (3, 5)),
}


def maker(name):
    values, sizes = FAMILIES[name]
    chosen = family(name)
    if name == "encoder":
        sizes = (*sizes, 2)
    return lambda config: chosen.build(config, *sizes), chosen.configure(values)


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_are_counted_without_building_every_layer(name):
    make, config = maker(name)
    assert count_parameters(make, config) == sum(p.numel() for p in make(config).parameters())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("decoder", {"attention": "2*linear,additive", "layers": 12, "positions": "none"}),
        (
            "encoder_decoder",
            {"attention": "linear,additive/2*linear,softmax", "encoder_layers": 14, "decoder_layers": 15},
        ),
    ],
)
def test_parameters_of_layers_of_different_kinds(name, settings):
    make, config = maker(name)
    config = replace(config, **settings)
    assert count_parameters(make, config) == sum(p.numel() for p in make(config).parameters())


def test_ten_thousand_layers_build_two():
    chosen, built = family("decoder"), []

    def make(config):
        built.append(config.layers)
        return chosen.build(config, 11)

    config = chosen.configure({"dim": 8, "heads": 2, "layers": 10_000})
    assert count_parameters(make, config) > 10_000 * 8 * 8
    assert built == [2, 1]


def test_building_on_meta_takes_no_memory_and_no_random_numbers():
    before = torch.get_rng_state()
    make, config = maker("decoder")
    assert {x.device.type for x in build_on_meta(make, config).state_dict().values()} == {"meta"}
    assert torch.equal(torch.get_rng_state(), before)


def test_bad_input_larger_than_memory():
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    config = family("decoder").configure({"dim": 2**20, "heads": 2, "layers": 10_000})
    with pytest.raises(ValueError, match=rf"has [\d,]+ parameters, .* GB, but this machine has {memory / 1e9:,.0f} GB"):
        require_memory(lambda config: family("decoder").build(config, 11), config)
    config = family("decoder").configure({"dim": 2**31 - 2, "heads": 2, "key_dim": 2**40})
    with pytest.raises(ValueError, match="a model of these sizes is too large"):
        require_memory(lambda config: family("decoder").build(config, 11), config)


def test_bad_input_that_does_not_fit_the_file():
    make, config = maker("network")
    tensors = {name: TensorHeader("F32", tuple(x.shape)) for name, x in make(config).state_dict().items()}

    def mismatch(changes, settings=config):
        return find_mismatch(make, settings, lambda found, names: found, {**tensors, **changes})

    name = "layers.0.linear.weight"
    assert mismatch({}) == ""
    assert mismatch({name: TensorHeader("F32", (6, 4))}) == f"{name} has shape (6, 4), not (6, 3)"
    assert mismatch({name: TensorHeader("I64", (6, 3))}) == f"{name} has type I64, not torch.float32"
    assert mismatch({"other": TensorHeader("F32", (1,))}) == "the model has no tensor other"
    many = family("network").configure({"hidden_dim": 6, "layers": 10_000})
    assert mismatch({}, many) == "layers=10,000, but the file has 20 tensors"
    del tensors[name]
    assert mismatch({}) == f"there is no tensor {name}"
