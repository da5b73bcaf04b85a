"""A compiled loss is one graph for batches of all shapes, and the loss it was."""

from functools import partial

import pytest
import torch

from qkv.data import Pair
from qkv.models import EncoderDecoder, EncoderDecoderConfig, Ensemble
from qkv.tasks.distillation import make_distillation_objective
from qkv.tasks.seq2seq import Seq2SeqData, make_objective
from qkv.train import Compute, Loop, Settings, create_run

WORDS = [Pair(tuple("abcdefg"[:length]) * 2, (tuple("XYZXYZ"[: length - 1]),)) for length in range(2, 8)]
STRINGS = Seq2SeqData.build({"train": 4 * WORDS, "valid": WORDS[:1]})
SETTINGS = Settings(steps=7, batch_size=5, label_smoothing=0.1, validate_every=5)


def make(attention: str, positions: str, *, teach: bool):
    torch.manual_seed(3)
    sizes = {"dim": 16, "heads": 2, "hidden_dim": 16, "encoder_layers": 1, "decoder_layers": 1, "max_length": 24}
    config = EncoderDecoderConfig(**sizes, attention=attention, positions=positions)
    model, teacher = (EncoderDecoder(config, len(STRINGS.sources), len(STRINGS.targets)) for _ in range(2))
    if teach:
        return make_distillation_objective(model, STRINGS, SETTINGS, Ensemble([teacher]).eval(), 0.7)
    return make_objective(model, STRINGS, SETTINGS)


def losses(task, folder, machine):
    run = create_run(folder)
    Loop(task, SETTINGS, run, machine).train()
    return [line["loss"] for line in run.read_metrics() if "loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "positions", "teach"), [("softmax", "rope", True), ("taylor", "sinusoidal", False)]
)
def test_batches_of_all_shapes_share_one_graph(tmp_path, monkeypatch, attention, positions, teach):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    task = make(attention, positions, teach=teach)
    assert len({tuple(task.collate(task.order(step))[0].shape) for step in range(7)}) > 2
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = losses(task, tmp_path / "compiled", Compute(compile=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert found == pytest.approx(losses(make(attention, positions, teach=teach), tmp_path / "plain", Compute()))
