import pytest

from qkv.profile.plan.gpus import GPUS, find_gpu


def test_an_unknown_gpu_names_the_nearest_one():
    with pytest.raises(ValueError, match=r"unknown GPU 'h20o'; did you mean 'h200'\? \(there are: a100, b200, h100"):
        find_gpu("h20o")


def test_names_are_read_in_any_case():
    assert find_gpu("H200") is GPUS["h200"]


def test_facts_of_the_h200():
    gpu = find_gpu("h200")
    assert (gpu.memory, gpu.rate("bfloat16"), gpu.rate("float32")) == (141e9, 989e12, 67e12)
    assert (gpu.bandwidth, gpu.link, gpu.node) == (4.8e12, 450e9, 8)
    assert gpu.measured.bfloat16 == (761e12, 790e12)
    assert gpu.measured.bandwidth == (4.24e12, 4.3e12)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_every_gpu_has_a_source_and_possible_rates(gpu):
    assert "data sheet" in gpu.source
    assert gpu.float32 < gpu.bfloat16
    assert gpu.link < gpu.bandwidth
    assert [name for name, one in GPUS.items() if one is gpu] == [gpu.name]
