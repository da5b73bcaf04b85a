"""Gradients recorded on a GPU are those launched one by one; without a GPU: a model that can be recorded looks at no
number on the way."""

import pytest
import torch
from torch import Tensor

from qkv.models import EncoderDecoder, EncoderDecoderConfig
from qkv.tasks.seq2seq import loss
from qkv.train.backward import CudaGraphBackward, EagerBackward
from qkv.train.batches import TrainBatch
from qkv.train.distributed import ProcessGroup

CONFIG = EncoderDecoderConfig(dim=32, heads=4, hidden_dim=48, encoder_layers=2, decoder_layers=1, max_length=16)


def batch(device: str, sources: int = 7, targets: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three words, the last shorter than the others."""
    source = torch.randint(4, 11, (3, sources), device=device)
    mask = torch.ones(3, sources, dtype=torch.bool, device=device)
    mask[2, -2:] = False
    given, wanted = (torch.randint(4, 13, (3, targets), device=device) for _ in range(2))
    return source, mask, given, wanted


@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "learned"])
@pytest.mark.parametrize("kind", ["softmax", "taylor", "linear"])
def test_a_model_on_a_gpu_looks_at_no_number(kind: str, positions: str) -> None:
    config = EncoderDecoderConfig(dim=32, heads=4, attention=kind, cross="softmax", positions=positions, max_length=16)
    with torch.device("meta"):  # as on a GPU, its numbers are elsewhere; here they cannot be had at all
        model = EncoderDecoder(config, 11, 13)
        loss(model, batch("meta"), 0.1).backward()


def test_a_look_at_a_number_would_be_seen() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        bool(batch("meta")[1].all())


def test_a_cpu_records_nothing() -> None:
    model = EncoderDecoder(CONFIG, 11, 13)
    with pytest.raises(ValueError, match="one process on cuda, got 1 on cpu"):
        CudaGraphBackward(model, ProcessGroup(torch.device("cpu")))


class Objective(torch.nn.Module):
    """The loss of a model."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> Tensor:
        return loss(self.model, tensors, 0.1)


@pytest.mark.gpu
def test_recorded_gradients_are_the_launched_ones() -> None:
    torch.manual_seed(5)
    group = ProcessGroup(torch.device("cuda"))
    objective = Objective(EncoderDecoder(CONFIG, 11, 13)).cuda().eval()
    updates = [TrainBatch([batch("cpu", *shape)], idle=False) for shape in ((7, 5), (3, 4), (7, 5), (7, 5), (3, 4))]
    launched = EagerBackward(objective, group)
    expected = []
    for update in updates:
        objective.zero_grad(set_to_none=True)
        expected.append((sum(launched.accumulate(update, 13)).item(), [p.grad for p in objective.parameters()]))
    recorded = CudaGraphBackward(objective, group)
    for update, (total, gradients) in zip(updates, expected, strict=True):
        objective.zero_grad(set_to_none=False)
        assert sum(recorded.accumulate(update, 13)).item() == pytest.approx(total, rel=1e-3)
        for parameter, gradient in zip(objective.parameters(), gradients, strict=True):
            assert parameter.grad is not None
            assert gradient is not None
            assert (parameter.grad - gradient).norm() <= 2e-2 * gradient.norm() + 1e-6


@pytest.mark.gpu
def test_every_replay_drops_other_numbers_and_a_seed_brings_them_back() -> None:
    group = ProcessGroup(torch.device("cuda"))
    config = EncoderDecoderConfig(dim=32, heads=4, dropout=0.5, max_length=16)
    objective = Objective(EncoderDecoder(config, 11, 13)).cuda().train()
    recorded, update = CudaGraphBackward(objective, group), TrainBatch([batch("cpu")], idle=False)
    recorded.accumulate(update, 1)
    found = []
    for seed in (1, 2, 1):
        torch.cuda.manual_seed_all(seed)
        found.append(sum(recorded.accumulate(update, 1)).item())
    assert found[0] == found[2] != found[1]
