"""One training loop for every model.

    step:  gradient of (summed loss / tokens of the whole batch), clipped; the optimizer; EMA of the weights

The order of examples and the learning rate are functions of (seed, step), dropout also of the rank. So resuming from a
checkpoint gives, on a CPU, the same weights bit for bit as a run that was never stopped. A step whose loss is not
finite is skipped and logged.
"""

import math
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.random import derive_seed
from qkv.storage.format_1 import upgrade_state_dict
from qkv.train.backward import Backward, CudaGraphBackward, EagerBackward, recompute_blocks
from qkv.train.batches import TrainBatch, TrainBatches
from qkv.train.checkpoint import Checkpoint
from qkv.train.compute import Compute
from qkv.train.distributed import ProcessGroup, make_process_group
from qkv.train.ema import Weights, batch_norm_buffers, clone_weights, require_no_split_batch_norm, to_device, update_ema
from qkv.train.failures import Watchdog
from qkv.train.objective import Objective
from qkv.train.optimizer import clip_grad_norm, load_optimizer_state, make_optimizer, optimizer_state
from qkv.train.parallel.support import require_mesh_support
from qkv.train.progress import Progress
from qkv.train.resume_check import changed_conditions, make_resume_check, require_resumable
from qkv.train.run import Run
from qkv.train.settings import MEASURED_STEPS, Settings, require_no_optimizer_settings
from qkv.train.signals import Interrupt, Interrupted
from qkv.train.tensorboard import TensorBoard, open_tensorboard

MAX_NONFINITE_STEPS = 20
"""Consecutive skipped steps after which training stops with an error."""

Report = Callable[[dict[str, Any]], None]


_CPU = Compute()


class _LossModule(nn.Module):
    """The loss as a module, so that it can be wrapped and compiled."""

    def __init__(self, objective: Objective):
        super().__init__()
        self.model = objective.model
        self.compute_loss = objective.loss

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.compute_loss(self.model, tensors)


def _compile(module: nn.Module) -> nn.Module:
    """Compile for dynamic shapes: batches of words have dozens, and compiling each takes longer than many steps."""
    compiled: nn.Module = torch.compile(module, dynamic=True)  # type: ignore[assignment]
    return compiled


def _typical_time(times: list[float]) -> float:
    """Return the mean time of a step, without outliers of more than four times the median."""
    longest = 4 * median(times)
    return mean(time for time in times if time <= longest)


def _ignore(_: dict[str, Any]) -> None:
    pass


class Loop:
    """Training of one objective in one run folder; `report` is called with every line of metrics."""

    def __init__(
        self, objective: Objective, settings: Settings, run: Run, compute: Compute = _CPU, report: Report = _ignore
    ):
        self.objective, self.settings, self.run, self.report, self.compute = objective, settings, run, report, compute
        self.group = make_process_group(torch.device(compute.device), compute.mesh, settings.dtype)
        self.device = self.group.device
        require_mesh_support(objective, self.group.mesh)
        if objective.update is not None:
            require_no_optimizer_settings(settings)
        self.model = objective.model.to(self.device)
        for module in objective.frozen:
            module.to(self.device)
        if settings.recompute:
            recompute_blocks(self.model, compiled=compute.compile or compute.graphs)
        loss_module: nn.Module = _LossModule(objective)
        self.loss_module = self.group.wrap(_compile(loss_module) if compute.compile else loss_module)
        make: Callable[[nn.Module, ProcessGroup, str], Backward]
        make = CudaGraphBackward if compute.graphs else EagerBackward
        self.backward = make(self.loss_module, self.group, settings.dtype)
        self.optimizer = make_optimizer(self.model, settings, sharded=self.group.shares_parameters)
        self._batch_norm_buffers = batch_norm_buffers(self.model)
        require_no_split_batch_norm(self.model, settings)
        self.ema: Weights = clone_weights(self.model)
        self.best: Weights = clone_weights(self.model)
        self.final: Weights | None = None  # complete, at rank 0, after training
        self.progress = Progress(steps=settings.steps)
        self.interrupt = Interrupt()
        self.watchdog = Watchdog(self.group.pulse, self.group.rank, self.group.world_size, compute.stall_limit)
        self._resume_check = make_resume_check(objective, settings, self.device, self.group.mesh, run)
        self._started = False
        self._has_saved = False
        self._clock = 0.0
        self._tensorboard: TensorBoard | None = None

    def resume(self) -> None:
        """Continue from the latest valid checkpoint, or from the start without one."""
        found = self.group.load_checkpoint(self.run, self.model, self.optimizer)
        if found is None:
            self.run.require_unfinished()
        else:
            self._restore(found)
        step = self.progress.step
        if self.group.sum(step) != step * self.group.world_size:
            raise QkvError(f"not all processes found the checkpoint of step {step}; they must share", self.run.folder)
        dropped = self.run.rewind(step, self.progress.validated) if self.group.rank == 0 else 0
        self.group.barrier()
        self._started = True
        if self.group.rank == 0 and self.run.seal():
            self._log({"event": "sealed"})
        if found is not None:
            self._has_saved = True
            self._log_resumed(found, dropped)
        elif dropped:
            self._log({"event": "restarted", "dropped": dropped})

    def train(self) -> Progress:
        """Train to the last step; on SIGTERM or Ctrl-C save and raise `Interrupted`."""
        if not self._started:
            self.run.require_no_checkpoint()
        self._started = True
        gpus = [self.device] if self.device.type == "cuda" else []
        # one thread for forward and backward: with one device, a second thread would only wait
        with (
            self.interrupt,
            torch.random.fork_rng(gpus),
            torch.autograd.set_multithreading_enabled(False),
            self.watchdog,
        ):
            if self.group.rank == 0:
                self._tensorboard = open_tensorboard(self.run.folder / "tensorboard", self.progress.step)
            try:
                self._run_steps()
            except Interrupted:
                self._save()
                raise
            finally:
                if self._tensorboard is not None:
                    self._tensorboard.close()
            with self.group.pulse.slow("saving the model"):
                self.final = self.group.complete_weights(self.best)
                if self.final is not None:
                    self.run.save_weights(self.final)
                self.group.barrier()
            self._stop_if_requested()  # training is done, but the sender of the signal waits for the process to end
        return self.progress

    def _restore(self, found: Checkpoint) -> None:
        require_resumable(found, self._resume_check, self.run.folder)
        progress = Progress.from_record(found.record["progress"])
        progress.steps = progress.steps or self.settings.steps  # measured after this checkpoint, before a kill
        if self.settings.steps not in (None, progress.steps):
            progress.change_length(self.settings.steps, self.run.folder)
        names = self.model.state_dict().keys()
        model, ema, best = (upgrade_state_dict(found.tensors[name], names) for name in ("model", "ema", "best"))
        try:
            self.model.load_state_dict(model)
            load_optimizer_state(self.optimizer, found.tensors["optimizer"])
        except (RuntimeError, ValueError) as error:
            first = str(error).strip().split("\n")[:2][-1].strip()
            raise QkvError(f"the checkpoint is of another model: {first}", self.run.folder) from error
        self.ema, self.best = to_device(ema, self.device), to_device(best, self.device)
        self.progress = progress
        self.settings = replace(self.settings, steps=progress.steps)

    def _log_resumed(self, found: Checkpoint, dropped: int) -> None:
        for problem in found.problems:
            self._log({"event": "damaged_checkpoint", "message": str(problem)})
        changed = changed_conditions(found, self._resume_check)
        exact = not changed and self.device.type == "cpu"
        self._log({"event": "resumed", "exact": exact, "changed": changed, "dropped": dropped})
        before = found.record["progress"]["steps"]
        if before not in (None, self.progress.steps):
            self._log({"event": "length_changed", "before": before})

    def _run_steps(self) -> None:
        self.group.pulse.begin_step(self.progress.step + 1)
        self._validate_if_due()
        if self._is_out_of_patience():
            return
        self.loss_module.train()  # every submodule, whatever mode it came in
        self._clock = time.perf_counter()
        with closing(self._batches()) as batches:
            for batch in batches:
                self._stop_if_requested()
                self._train_step(batch)
                self.group.pulse.begin_step(self.progress.step + 1)
                self._log_stragglers()
                self._measure()
                self._validate_if_due()
                if self._is_out_of_patience():
                    return

    def _batches(self) -> Generator[TrainBatch, None, None]:
        batches = TrainBatches(self.objective, self.settings.accumulation_steps, self.group)
        while self.progress.steps is None or self.progress.step < self.progress.steps:
            end = MEASURED_STEPS.stop if self.progress.steps is None else self.progress.steps
            yield from batches.load(range(self.progress.step, end), self.compute.workers)

    def _measure(self) -> None:
        """Time the step with its data loading; after the measured steps, fix `steps`."""
        before, self._clock = self._clock, time.perf_counter()
        if self.progress.steps is not None or self.settings.minutes is None:
            return
        if self.progress.step > MEASURED_STEPS.start:
            self.progress.times.append(self._clock - before)
        if self.progress.step >= MEASURED_STEPS.stop:
            seconds = self.group.sum(_typical_time(self.progress.times)) / self.group.world_size
            self.progress.times = []
            self.progress.steps = max(int(60 * self.settings.minutes / seconds), MEASURED_STEPS.stop + 1)
            self.settings = replace(self.settings, steps=self.progress.steps)
            if self.group.rank == 0:
                self.run.record_steps(self.progress.steps)
            self._log({"event": "steps", "steps": self.progress.steps})

    def _train_step(self, batch: TrainBatch) -> None:
        step, started = self.progress.step, time.perf_counter()
        rate = self.objective.schedule(self.settings, step)
        self._seed("dropout", step, self.group.rank)
        if not self.model.training:  # after a validation; not at every step, since train() visits all modules
            self.loss_module.train()
        own_tokens = sum(self.objective.count(tensors) for tensors in batch.counted)
        tokens = int(self.group.sum(own_tokens))
        update = self._optimizer_update if self.objective.update is None else self._custom_update
        metrics = update(batch, rate, tokens)
        self.progress.step += 1
        seconds = time.perf_counter() - started
        self._log({"loss": metrics.pop("loss"), "rate": rate, **metrics, "tokens": tokens, "seconds": seconds})

    def _optimizer_update(self, batch: TrainBatch, rate: float, tokens: int) -> dict[str, float]:
        """Take one optimizer step, or skip it if the loss or the gradient is not finite."""
        step = self.progress.step
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        saved_buffers = [buffer.clone() for buffer in self._batch_norm_buffers]
        losses = self.backward.accumulate(batch, max(tokens, 1))
        # the one sync with the GPU
        norm = clip_grad_norm(self.optimizer, self.settings.max_grad_norm, self.group.complete)
        loss = self.group.sum(sum(float(part) for part in losses)) / max(tokens, 1)
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
            if self.settings.ema_decay:
                update_ema(self.ema, self.model, min(self.settings.ema_decay, (1 + step) / (10 + step)))
            self.progress.skipped = 0
        else:
            for buffer, saved in zip(self._batch_norm_buffers, saved_buffers, strict=True):
                buffer.copy_(saved)
            self._log_skipped(step, loss, norm)
        self.optimizer.zero_grad(set_to_none=not self.backward.keeps_grad_tensors)
        return {"loss": loss, "norm": norm}

    def _custom_update(self, batch: TrainBatch, rate: float, tokens: int) -> dict[str, float]:
        """Run the objective's own update. It cannot be undone, so a loss that is not finite ends the training."""
        assert self.objective.update is not None
        (micro_batch,) = batch.micro_batches
        tensors = tuple(tensor.to(self.device) for tensor in micro_batch)
        loss = self.objective.update(self.model, tensors, rate) / max(tokens, 1)
        if not math.isfinite(loss):
            raise QkvError(
                f"the loss is {loss} at step {self.progress.step + 1}; the last checkpoint is valid: use a learning "
                f"rate below {self.settings.learning_rate:g} in a new run",
                self.run.folder,
            )
        return {"loss": loss}

    def _seed(self, purpose: str, *ids: int) -> None:
        """Seed the generators in use; torch.manual_seed seeds every device type and takes as long as a small step."""
        number = derive_seed(self.settings.seed, purpose, *ids)
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(number)
        elif self.device.type == "mps":
            torch.mps.manual_seed(number)

    def _log_skipped(self, step: int, loss: float, norm: float) -> None:
        self.progress.skipped += 1
        message = f"no update: the loss is {loss}, the gradient norm {norm}"
        self._log({"step": step + 1, "event": "not_finite", "message": message, "ids": self.objective.order(step)})
        if self.progress.skipped >= MAX_NONFINITE_STEPS:
            raise QkvError(
                f"{MAX_NONFINITE_STEPS} updates in a row were not finite, the last at step {step + 1}", self.run.folder
            )

    def _validate_if_due(self) -> None:
        """Validate and save every `validate_every` steps and at the last; an interrupted validation is repeated."""
        progress = self.progress
        due = progress.step % self.settings.validate_every == 0 or progress.step == progress.steps
        if progress.step in (0, progress.validated) or not due:
            return
        with self.group.pulse.slow("validation"):
            score = self._score()
        if self.group.any(score is None) or score is None:
            raise Interrupted(self.interrupt.received or Interrupt.SIGNALS[0])
        score = self.group.sum(score) / self.group.world_size  # equal in all processes, which must stop together
        if score < progress.best or not progress.best_step:
            progress.best, progress.best_step = score if math.isfinite(score) else math.inf, progress.step
            self.best = {name: value.clone() for name, value in self._evaluated_weights().items()}
            progress.stale = 0
        else:
            progress.stale += 1
        progress.validated = progress.step
        stops = {"stops": True} if self._is_out_of_patience() else {}
        self._log({"event": "validated", "score": score, "best": progress.best, **stops})
        self._save()

    def _is_out_of_patience(self) -> bool:
        """Return whether training ends early: the last `patience` validations brought no lower score."""
        return 0 < self.settings.patience <= self.progress.stale

    def _score(self) -> float | None:
        """Return the validation score of the evaluated weights, or None if this process received a signal."""
        current = clone_weights(self.model)
        self.model.load_state_dict(self._evaluated_weights())
        self._seed("validation", self.progress.step)
        self.loss_module.eval()
        # processes that share parameters compute together, so they must stop together
        stop = self._stop_if_requested if self.group.shares_parameters else self._continue_validation
        try:
            with torch.no_grad():
                return self.group.validate(self.loss_module, lambda: float(self.objective.validate(self.model, stop)))
        except Interrupted:
            return None
        finally:
            self.model.load_state_dict(current)

    def _continue_validation(self) -> None:
        self.group.pulse.tick()
        self.interrupt.raise_if_received()

    def _evaluated_weights(self) -> Weights:
        """Return the weights that are validated and kept: the EMA if there is one."""
        return self.ema if self.settings.ema_decay else self.model.state_dict()

    def _save(self) -> None:
        with self.group.pulse.slow("saving a checkpoint"):
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        tensors = {
            "model": self.model.state_dict(),
            "ema": self.ema,
            "best": self.best,
            "optimizer": optimizer_state(self.optimizer),
        }
        record = {"progress": self.progress.to_record(), "resume_check": self._resume_check}
        if self.group.rank == 0 and self._has_saved and not self.run.checkpoints.exists():
            self._log({"event": "checkpoints_removed"})
        self._has_saved = True
        self.group.save_checkpoint(self.run, self.progress.step, tensors, record)
        self.group.barrier()

    def _stop_if_requested(self) -> None:
        """Raise `Interrupted` in all processes at the same step, since a process that continues would hang."""
        if self.group.any(self.interrupt.received > 0):
            raise Interrupted(self.interrupt.received or Interrupt.SIGNALS[0])

    def _log_stragglers(self) -> None:
        for rank, seconds, others in self.watchdog.stragglers():
            self._log({"event": "straggler", "rank": rank, "own_seconds": seconds, "others_seconds": others})

    def _log(self, record: dict[str, Any]) -> None:
        if self.group.rank > 0:
            return
        line = {"step": self.progress.step, **record}
        self.run.log(line)
        if self._tensorboard is not None:
            self._tensorboard.write(line)
        self.report({"steps": self.progress.steps, **line})
