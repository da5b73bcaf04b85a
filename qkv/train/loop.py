"""One training loop for every model.

    update:  gradient of (sum of the loss / tokens of the whole batch), clipped; AdamW; running mean of the weights

The order of examples, dropout and the learning rate are functions of (seed, step, rank), so going on
from a checkpoint gives, on a CPU, the same weights to the last bit as never having stopped. A loss
that is not finite changes nothing but a line in the log.
"""

import math
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.random import derive_seed
from qkv.train.backward import Gradients, Launched, Recorded, require_one_card
from qkv.train.batches import Update, Updates
from qkv.train.clip import clip_gradient
from qkv.train.distributed import Group, world
from qkv.train.ema import Weights, average_in, copy_of, moved, require_whole_batches, statistics_of
from qkv.train.objective import Objective
from qkv.train.optimizer import make_optimizer, memory_of, remind
from qkv.train.resume_check import changed_conditions, identify, require_same
from qkv.train.run import Checkpoint, Run
from qkv.train.settings import MEASURED, Settings, require_own_update
from qkv.train.signals import Interrupt, Interrupted
from qkv.train.tensorboard import Board, open_board

PATIENCE = 20
"""Updates in a row that may be not finite before training gives up."""

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Machine:
    """Where and how to compute; what a CPU computes does not depend on `workers`."""

    device: str = "cpu"
    workers: int = 0
    """Processes that prepare batches ahead."""
    compile: bool = False
    """torch.compile the model."""
    graphs: bool = False
    """Record the kernels of each shape once and replay them; for a small model, by one process on CUDA."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ValueError(f"workers must be 0 or more, got {self.workers}")
        if self.graphs:
            require_one_card(torch.device(self.device), world())


_CPU = Machine()


@dataclass
class Progress:
    """Where training stands; all of it is in every checkpoint."""

    step: int = 0
    steps: int | None = None
    validated: int = 0
    """The last step that was validated."""
    best: float = math.inf
    best_step: int = 0
    skipped: int = 0
    """Updates in a row that were not finite."""
    times: list[float] = field(default_factory=list)
    """Seconds of each measured step, until `steps` is known."""


class _Objective(nn.Module):
    """The loss as a module, so that it can be wrapped and compiled."""

    def __init__(self, task: Objective):
        super().__init__()
        self.model = task.model
        self.task_loss = task.loss

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.task_loss(self.model, tensors)


def _compiled(objective: nn.Module) -> nn.Module:
    """Once for all sizes: batches of words have dozens of shapes, and compiling takes longer than many steps."""
    compiled: nn.Module = torch.compile(objective, dynamic=True)  # type: ignore[assignment]
    return compiled


def _usual(times: list[float]) -> float:
    """The mean time of a step, without those in which the machine did something else: four times the middle one."""
    longest = 4 * median(times)
    return mean(time for time in times if time <= longest)


def _say_nothing(_: dict[str, Any]) -> None:
    pass


class Loop:
    """Training of one task in one run folder; `report` is given every line of metrics as it is written."""

    def __init__(
        self, task: Objective, settings: Settings, run: Run, machine: Machine = _CPU, report: Report = _say_nothing
    ):
        self.task, self.settings, self.run, self.report, self.machine = task, settings, run, report, machine
        self.group = Group(torch.device(machine.device))
        self.device = self.group.device
        if task.update is not None:
            require_own_update(settings)
            self._require_one_process()
        self.model = task.model.to(self.device)
        for other in task.beside:
            other.to(self.device)
        objective: nn.Module = _Objective(task)
        self.objective = self.group.wrap(_compiled(objective) if machine.compile else objective)
        make: Callable[[nn.Module, Group], Gradients] = Recorded if machine.graphs else Launched
        self.gradients = make(self.objective, self.group)
        self.optimizer = make_optimizer(self.model, settings)
        self._statistics = statistics_of(self.model)
        require_whole_batches(self.model, settings)
        self.average: Weights = copy_of(self.model)
        self.best: Weights = copy_of(self.model)
        self.progress = Progress(steps=settings.steps)
        self.interrupt = Interrupt()
        self._identity = identify(task, settings, self.device, self.group.world)
        self._started = False
        self._clock = 0.0
        self._board: Board | None = None

    def resume(self) -> None:
        """Go on from the newest good checkpoint; with none, from the start."""
        found = self.run.load_checkpoint()
        if found is not None:
            self._restore(found)
        step = self.progress.step
        if self.group.sum(step) != step * self.group.world:
            raise QkvError(f"not all processes found the checkpoint of step {step}; they must share", self.run.folder)
        if self.group.rank == 0:
            self.run.rewind(step, self.progress.validated)
        self.group.wait()
        self._started = True
        if found is not None:
            for problem in found.problems:
                self._tell({"event": "damaged_checkpoint", "message": str(problem)})
            changed = changed_conditions(found.record["identity"], self._identity)
            exact = not changed and self.device.type == "cpu"
            self._tell({"event": "resumed", "exact": exact, "changed": changed})

    def train(self) -> Progress:
        """Train to the end; on SIGTERM or Ctrl-C save and raise `Interrupted`."""
        if not self._started:
            self.run.require_new()
        self._started = True
        cards = [self.device] if self.device.type == "cuda" else []
        # forward and backward in one thread: one process has one device, so a second thread has nothing to do meanwhile
        with self.interrupt, torch.random.fork_rng(cards), torch.autograd.set_multithreading_enabled(False):
            if self.group.rank == 0:
                self._board = open_board(self.run.folder / "tensorboard", self.progress.step)
            try:
                self._take_steps()
            except Interrupted:
                self._save()
                raise
            finally:
                if self._board is not None:
                    self._board.close()
            if self.group.rank == 0:
                self.run.save_weights(self.best)
            self.group.wait()
            self._stop_if_asked()  # too late to stop training, but whoever asked waits for the process
        return self.progress

    def _restore(self, found: Checkpoint) -> None:
        require_same(found.record["identity"], self._identity, self.run.folder)
        progress = Progress(**found.record["progress"])
        progress.best = math.inf if progress.best is None else progress.best
        progress.steps = progress.steps or self.settings.steps  # measured after this checkpoint, before a kill
        if self.settings.steps not in (None, progress.steps):
            raise QkvError(
                f"the run was started with steps={progress.steps} and cannot go on with steps={self.settings.steps}",
                self.run.folder,
            )
        try:
            self.model.load_state_dict(found.tensors["model"])
            remind(self.optimizer, found.tensors["optimizer"])
        except (RuntimeError, ValueError) as error:
            first = str(error).strip().split("\n")[:2][-1].strip()
            raise QkvError(f"the checkpoint is of another model: {first}", self.run.folder) from error
        self.average, self.best = (moved(found.tensors[name], self.device) for name in ("average", "best"))
        self.progress = progress
        self.settings = replace(self.settings, steps=progress.steps)

    def _take_steps(self) -> None:
        self._validate_if_due()
        self.objective.train()  # all of it, whatever state its parts came in
        self._clock = time.perf_counter()
        with closing(self._updates()) as updates:
            for update in updates:
                self._stop_if_asked()
                self._update(update)
                self._measure()
                self._validate_if_due()

    def _updates(self) -> Generator[Update, None, None]:
        updates = Updates(self.task, self.settings.accumulation_steps, self.group)
        while self.progress.steps is None or self.progress.step < self.progress.steps:
            end = MEASURED.stop if self.progress.steps is None else self.progress.steps
            yield from updates.load(range(self.progress.step, end), self.machine.workers)

    def _measure(self) -> None:
        """The time of an update with all that came before it; after the measured ones, `steps` is fixed."""
        before, self._clock = self._clock, time.perf_counter()
        if self.progress.steps is not None or self.settings.minutes is None:
            return
        if self.progress.step > MEASURED.start:
            self.progress.times.append(self._clock - before)
        if self.progress.step >= MEASURED.stop:
            seconds = self.group.sum(_usual(self.progress.times)) / self.group.world
            self.progress.times = []
            self.progress.steps = max(int(60 * self.settings.minutes / seconds), MEASURED.stop + 1)
            self.settings = replace(self.settings, steps=self.progress.steps)
            if self.group.rank == 0:
                self.run.fix_steps(self.progress.steps)
            self._tell({"event": "steps", "steps": self.progress.steps})

    def _update(self, update: Update) -> None:
        step, started = self.progress.step, time.perf_counter()
        rate = self.task.rate(self.settings, step)
        self._seed("dropout", step, self.group.rank)
        if not self.model.training:  # since it was judged: not at every step, for it goes through all modules
            self.objective.train()
        mine = 0 if update.idle else sum(self.task.count(part) for part in update.parts)
        tokens = int(self.group.sum(mine))
        learn = self._descend if self.task.update is None else self._update_itself
        learned = learn(update, rate, tokens)
        self.progress.step += 1
        seconds = time.perf_counter() - started
        self._tell({"loss": learned.pop("loss"), "rate": rate, **learned, "tokens": tokens, "seconds": seconds})

    def _descend(self, update: Update, rate: float, tokens: int) -> dict[str, float]:
        """One step of the optimizer; with a loss that is not finite, none."""
        step = self.progress.step
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        before = [buffer.clone() for buffer in self._statistics]
        lost = self.gradients.add(update, max(tokens, 1))
        norm = clip_gradient(self.optimizer, self.settings.max_grad_norm)  # here a GPU is waited for, once
        loss = self.group.sum(sum(float(part) for part in lost)) / max(tokens, 1)
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
            if self.settings.ema_decay:
                average_in(self.average, self.model, min(self.settings.ema_decay, (1 + step) / (10 + step)))
            self.progress.skipped = 0
        else:
            for buffer, was in zip(self._statistics, before, strict=True):
                buffer.copy_(was)
            self._skip(step, loss, norm)
        self.optimizer.zero_grad(set_to_none=not self.gradients.keeps_places)
        return {"loss": loss, "norm": norm}

    def _update_itself(self, update: Update, rate: float, tokens: int) -> dict[str, float]:
        """The task's own update. It cannot be taken back: a loss that is not finite ends the training."""
        assert self.task.update is not None
        (part,) = update.parts
        loss = self.task.update(self.model, tuple(tensor.to(self.device) for tensor in part), rate) / max(tokens, 1)
        if not math.isfinite(loss):
            raise QkvError(
                f"the loss is {loss} at step {self.progress.step + 1}; the last checkpoint is good: take a learning "
                f"rate below {self.settings.learning_rate:g} in a new run",
                self.run.folder,
            )
        return {"loss": loss}

    def _require_one_process(self) -> None:
        if self.group.world > 1:
            raise QkvError(f"this task updates its model itself, which {self.group.world} processes cannot do together")

    def _seed(self, purpose: str, *ids: int) -> None:
        """Seed where it matters; torch.manual_seed sees to every kind of device, which takes as long as a small net."""
        number = derive_seed(self.settings.seed, purpose, *ids)
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(number)

    def _skip(self, step: int, loss: float, norm: float) -> None:
        self.progress.skipped += 1
        message = f"no update: the loss is {loss}, the length of the gradient {norm}"
        self._tell({"step": step + 1, "event": "not_finite", "message": message, "ids": self.task.order(step)})
        if self.progress.skipped >= PATIENCE:
            raise QkvError(f"{PATIENCE} updates in a row were not finite, the last at step {step + 1}", self.run.folder)

    def _validate_if_due(self) -> None:
        """Validate and save at every `every`-th step and at the last; a run stopped meanwhile does it on its return."""
        here = self.progress
        due = here.step % self.settings.validate_every == 0 or here.step == here.steps
        if here.step in (0, here.validated) or not due:
            return
        score = self._score()
        if self.group.any(score is None) or score is None:
            raise Interrupted(self.interrupt.received or Interrupt.SIGNALS[0])
        if score < here.best or not here.best_step:
            here.best, here.best_step = score if math.isfinite(score) else math.inf, here.step
            self.best = {name: value.clone() for name, value in self._judged().items()}
        here.validated = here.step
        self._tell({"event": "validated", "score": score, "best": here.best})
        self._save()

    def _score(self) -> float | None:
        """How bad the judged weights are; None if this process was asked to stop."""
        current = copy_of(self.model)
        self.model.load_state_dict(self._judged())
        self._seed("validation", self.progress.step)
        self.objective.eval()
        try:
            with torch.no_grad():
                return float(self.task.validate(self.model, self.interrupt.raise_if_received))
        except Interrupted:
            return None
        finally:
            self.model.load_state_dict(current)

    def _judged(self) -> Weights:
        """The weights that are validated and kept: the running mean if there is one."""
        return self.average if self.settings.ema_decay else self.model.state_dict()

    def _save(self) -> None:
        if self.group.rank == 0:
            tensors = {
                "model": self.model.state_dict(),
                "average": self.average,
                "best": self.best,
                "optimizer": memory_of(self.optimizer),
            }
            progress = {
                **asdict(self.progress),
                "best": self.progress.best if math.isfinite(self.progress.best) else None,
            }
            self.run.save_checkpoint(self.progress.step, tensors, {"progress": progress, "identity": self._identity})
        self.group.wait()

    def _stop_if_asked(self) -> None:
        """All processes stop at the same step, or the others would wait for ever."""
        if self.group.any(self.interrupt.received > 0):
            raise Interrupted(self.interrupt.received or Interrupt.SIGNALS[0])

    def _tell(self, record: dict[str, Any]) -> None:
        if self.group.rank > 0:
            return
        line = {"step": self.progress.step, **record}
        self.run.log(line)
        if self._board is not None:
            self._board.write(line)
        self.report({"steps": self.progress.steps, **line})
