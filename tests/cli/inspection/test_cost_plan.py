"""`qkv cost --gpu` as a user runs it."""

import json

import pytest

from tests.cli.run import qkv, run

SMALL = ("cost", "text:small", "--gpu", "h200")


def test_the_tables():
    text = qkv(*SMALL, "--mesh", "data=2,shard=4,sequence=2", "--n", "1024", "--node", "4", "--network", "200")
    for part in (
        "mesh data=2,shard=4,sequence=2: 16 x h200, 4 per node, 200 Gbit/s each; bfloat16, adamw",
        "text:small, n = 1,024, batch 8, 1 per device",
        "the vocabulary has the requested size, data.size = 2,000; no text was read",
        "T = 512 per device, Q = 2",
        "gathered parameters",
        "FSDP2: reduce-scatter of gradients",
        "HSDP: all-reduce of gradients",
        "sequence: keys and values, backward",
        "2 (n - 1) / n * (4 P / (shard sequence))",
        "989 TFLOP/s, 4.8 TB/s, 450 GB/s to its node (NVIDIA H200 SXM data sheet)",
        "measured rates, recompute",
        "without recompute it fits",
    ):
        assert part in text


def test_json_and_settings():
    changed = ("--set", "model.dim=64", "--set", "model.heads=2", "--set", "train.optimizer=sgd")
    found = json.loads(qkv(*SMALL, *changed, "--mesh", "data=2", "--batch", "6", "--precision", "float32", "--json"))
    assert (found["batch"], found["per_device"]["examples"], found["precision"]) == (6, 3, "float32")
    assert found["memory"]["terms"]["optimizer"]["bytes"] == 4 * found["parameters"]["all"]
    assert [one["name"] for one in found["traffic"]] == ["DDP: all-reduce of gradients"]
    assert found["recompute"]["false"]["fits"] is True


def test_the_precision_is_that_of_the_training():
    found = json.loads(qkv(*SMALL, "--set", "train.dtype=float32", "--json"))
    assert found["precision"] == "float32"


def test_one_device_by_default():
    text = qkv(*SMALL, "--batch", "16")
    assert "mesh data=1,shard=1,sequence=1: 1 x h200" in text
    assert "one device: nothing is sent" in text


def test_settings_without_a_plan():
    found = json.loads(qkv("cost", "text:small", "--set", "model.layers=1", "--set", "data.size=500", "--json"))
    assert found["note"] == "the vocabulary has the requested size, data.size = 500; no text was read"
    assert found["parameters"]["terms"]["embed.weight"]["value"] == 500 * 128


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text:small", "--mesh", "data=2"), "--mesh plans a training step on GPUs, so it needs --gpu"),
        (("text:small", "--gpu", "h20"), "unknown GPU 'h20'; did you mean 'h200'?"),
        (("text:small", "--gpu", "h200", "--mesh", "dat=2"), "unknown mesh axis 'dat'; did you mean 'data'?"),
        (
            ("text:small", "--gpu", "h200", "--mesh", "shard=4", "--batch", "6"),
            "batch=6 must be divisible by data*shard=4",
        ),
        (
            ("text:small", "--gpu", "h200", "--mesh", "sequence=3", "--n", "100"),
            "sequence=3 must divide n=100",
        ),
        (
            ("text:small", "--gpu", "h200", "--n", "4096"),
            "n=4,096 exceeds the longest sequence of text:small, 1,024; for a preset: --set model.max_length=4096",
        ),
        (("decoder", "--gpu", "h200"), "--gpu plans the training of a model, but decoder is a block"),
        (("words:small", "--gpu", "h200"), "words:small updates its model itself"),
        (
            ("text:small", "--gpu", "h200", "--time", "--verbose"),
            "--gpu prints its own tables and cannot be combined with --time, --verbose",
        ),
        (("torch.nn:Identity", "--gpu", "h200", "--input", "float[1,3]"), "has no parameter to train: Identity"),
        (("torch.nn:Identity", "--set", "model.dim=3"), "--set changes a preset of a task, such as text:small"),
        (("text:small", "--gpu", "h200", "--network", "0"), "network=0 must be above 0"),
    ],
)
def test_wrong_use(arguments, message):
    done = run("cost", *arguments)
    assert done.code == 2
    assert message in done.stderr.replace("\n", " ")
    assert not done.stdout
