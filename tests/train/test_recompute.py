"""Recomputation of blocks: the same gradients to the last bit, and fewer bytes; the types of matrix products."""

from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.distributed as dist

from benchmarks.sequence_parallel import launch
from qkv.layers import parallelize_sequence
from qkv.models import family
from qkv.train import Compute
from qkv.train.backward import EagerBackward, recompute_blocks, uses_bfloat16
from qkv.train.distributed import ProcessGroup
from tests.cli.run import qkv
from tests.train.failures.ranks import said, two_ranks
from tests.train.job import losses
from tests.train.loops import loop_in

SIZES = {"dim": 12, "heads": 3, "hidden_dim": 20, "dropout": 0.3, "max_length": 16}
TOKENS = 11


def build(name, *tokens, **sizes):
    torch.manual_seed(5)
    chosen = family(name)
    return chosen.build(chosen.configure({**SIZES, **sizes}), *tokens).double().train()


def decoder(**sizes):
    return build("decoder", TOKENS, **{"layers": 3, **sizes})


MODELS = {
    "decoder": (decoder, 3),
    "delta": (partial(decoder, layers=4, attention="delta+forget+write,softmax"), 4),
    "encoder": (lambda: build("encoder", TOKENS, 2, layers=2), 2),
    "encoder_decoder": (lambda: build("encoder_decoder", TOKENS, 7, encoder_layers=2, decoder_layers=3), 5),
}


def forward(model):
    """A number that depends on all outputs, with dropout by the same seed."""
    tokens = torch.arange(2 * 9).remainder(7).view(2, 9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    given = (tokens, tokens[:, :5], mask) if hasattr(model, "encoder") else (tokens,)
    options = {} if hasattr(model, "encoder") else {"mask": mask}
    torch.manual_seed(17)
    out = model(*given, **options)
    return (out if isinstance(out, torch.Tensor) else out[0]).square().sum()


def gradients(model):
    loss = forward(model)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def count_runs(model):
    """A list that grows whenever an attention layer inside a block runs."""
    runs = []
    for name, part in model.named_modules():
        if name.endswith(".attention") and name.count(".") == 2:
            part.register_forward_hook(lambda *_: runs.append(1))
    return runs


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_equal_to_the_last_bit(name):
    make, blocks = MODELS[name]
    plain, again = make(), make()
    recompute_blocks(again)
    runs = count_runs(again)
    (loss, expected), (found_loss, found) = gradients(plain), gradients(again)
    assert len(runs) == 2 * blocks
    assert torch.equal(loss, found_loss)
    assert found.keys() == expected.keys()
    assert [key for key, value in expected.items() if not torch.equal(found[key], value)] == []


def test_dropout_depends_on_the_seed():
    """So a pass that did not restore the random state would have other gradients."""
    model, tokens, found = decoder(), torch.arange(9)[None].remainder(7), []
    for seed in (17, 18):
        torch.manual_seed(seed)
        found.append(model(tokens).square().sum())
    assert not torch.equal(*found)


def test_evaluation_runs_each_block_once():
    model = decoder()
    recompute_blocks(model)
    runs = count_runs(model)
    with torch.no_grad():
        forward(model)
    forward(model.eval()).backward()
    assert len(runs) == 3 + 3


def test_a_second_training_does_not_run_blocks_three_times():
    model = decoder()
    recompute_blocks(model)
    recompute_blocks(model)
    runs = count_runs(model)
    gradients(model)
    assert len(runs) == 2 * 3


def test_a_copy_has_its_own_blocks():
    model = decoder()
    recompute_blocks(model)
    copy = deepcopy(model)
    before = forward(copy.eval())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(forward(copy), before)
    assert before > 0


@pytest.mark.parametrize("model", [torch.nn.LSTM(3, 5), torch.nn.Linear(3, 5)])
def test_a_model_without_blocks_is_refused(model):
    name = type(model).__name__
    with pytest.raises(ValueError, match=f"train.recompute=true runs Transformer blocks again, but {name} has none"):
        recompute_blocks(model)


def test_a_compiled_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="leave out --compile and --graphs"):
        loop_in(tmp_path, recompute=True, machine=Compute(compile=True))


def test_a_training_takes_the_same_steps(tmp_path):
    plain, again = (loop_in(tmp_path / str(on), steps=12, recompute=on) for on in (False, True))
    plain.train()
    again.train()
    assert losses(tmp_path / "False") == losses(tmp_path / "True")
    weights = again.model.state_dict()
    assert [name for name, value in plain.model.state_dict().items() if not torch.equal(value, weights[name])] == []


@pytest.mark.slow
@pytest.mark.process
def test_two_processes_take_the_same_steps(tmp_path):
    found = []
    for recompute in (False, True):
        folder = tmp_path / str(recompute)
        folder.mkdir()
        with two_ranks(folder, {"steps": 12, "recompute": recompute, "accumulation_steps": 2}) as processes:
            for process in processes:
                process.join(60)
            assert [process.exitcode for process in processes] == [0, 0], said(folder)
        found.append((losses(folder), (folder / "model.safetensors").read_bytes()))
    assert len(found[0][0]) == 12
    assert found[0] == found[1]


def differing_gradients():
    """Return the parameters whose gradients differ with recomputation of parts of sequences, and the number of all."""
    rank, found = dist.get_rank(), []
    for recompute in (False, True):
        model = decoder(layers=3, attention="softmax,linear+forget,delta+write")
        parallelize_sequence(model)
        if recompute:
            recompute_blocks(model)
        torch.manual_seed(rank)
        model(torch.arange(2 * 5).remainder(7 - rank).view(2, 5)).square().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    plain, again = found
    return [name for name in plain if not torch.equal(plain[name], again[name])], len(plain)


@pytest.mark.slow
@pytest.mark.process
def test_two_parts_of_a_sequence_have_the_same_gradients(tmp_path):
    """The second pass of a block exchanges states again, in all processes together."""
    for names, count in launch(differing_gradients, 2, tmp_path):
        assert count > 30
        assert names == []


@pytest.mark.parametrize(
    ("dtype", "device", "expected"),
    [
        ("auto", "cpu", False),
        ("auto", "cuda", True),
        ("auto", "mps", False),
        ("float32", "cpu", False),
        ("float32", "cuda", False),
        ("bfloat16", "cuda", True),
    ],
)
def test_type_of_matrix_products(dtype, device, expected):
    assert uses_bfloat16(dtype, torch.device(device)) is expected


def test_bfloat16_on_a_cpu_is_refused():
    with pytest.raises(ValueError, match="train.dtype=bfloat16 needs a CUDA device, got cpu; use float32 or auto"):
        EagerBackward(torch.nn.Linear(3, 5), ProcessGroup(torch.device("cpu")), "bfloat16")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.dtype=bfloat16", "train.dtype=bfloat16 needs a CUDA device, got cpu"),
        ("train.recompute=true", "train.recompute=true runs Transformer blocks again, but"),
        ("train.recompute=perhaps", "recompute"),
    ],
)
def test_the_command_refuses_before_a_folder_exists(tmp_path, setting, message):
    folder = tmp_path / "run"
    said = qkv("train", "xor", "--steps", "3", "--device", "cpu", "--run", str(folder), "--set", setting, code=2)
    assert message in said
    assert len(said.splitlines()) == 1
    assert not folder.exists()
