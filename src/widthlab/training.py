"""One resumable training run: a checkpoint's specification in, its snapshots out."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from widthlab import specs
from widthlab.checkpoints.evaluation import evaluate, hits, loss_of
from widthlab.checkpoints.files import (
    load_history,
    load_model,
    load_snapshot,
    snapshot_path,
    write_history,
    write_tensors,
)
from widthlab.checkpoints.numerics import reproducible
from widthlab.checkpoints.schedule import BatchOrder, Seeds, learning_rate, snapshot_steps
from widthlab.checkpoints.scratch import State, file_digest, load_state, save_state
from widthlab.data.prepared import Prepared
from widthlab.errors import WidthlabError
from widthlab.interruption import Interrupted
from widthlab.models import Model, build
from widthlab.specs_base import IDENTITY

__all__ = [
    "Interrupted",
    "Seeds",
    "Summary",
    "load_history",
    "load_model",
    "load_snapshot",
    "snapshot_path",
    "snapshot_steps",
    "train",
]

SAVE_SECONDS = 30.0
"""Longest time between saves, in seconds, beside `save_every`; it has no effect on results."""

LOG_SECONDS = 5.0
"""Shortest time between lines of progress, in seconds."""


@dataclass(frozen=True)
class Summary:
    """What a run that came to its end returns; its weights are in the checkpoint's folder.

    `history` has the entries of `load_history`, with None where a value is not finite.
    """

    status: Literal["finished", "diverged"]
    diverged_step: int | None
    snapshots: tuple[int, ...]
    history: dict[str, list[float | None]]


def train(
    checkpoint: specs.Checkpoint,
    data: Prepared,
    *,
    seeds: Seeds | None = None,
    out: Path,
    scratch: Path,
    device: torch.device,
    log: Callable[[str], None],
) -> Summary:
    """Train one network, or go on with it, and write its snapshots and history to `out`.

    Seeds left out are those of the checkpoint, `Seeds.of`. The state for resuming, and the
    snapshots so far, live in `scratch`, which the caller removes once the result is published:
    until then, a repeated call only copies them again. A run that is killed at any moment and
    repeated ends with bitwise the same weights on the CPU. The random state of torch and numpy is
    not touched.

    Divergence (a training loss or a weight that is not finite) ends the run with the status
    `diverged`; the snapshots before it are kept, and `diverged_step` is the number of steps taken
    when it was seen. Raises Interrupted on SIGTERM, and WidthlabError where network and data do
    not fit together or a snapshot is no longer what was written.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with reproducible(device), _terminations() as terminated:
        run = _Run(checkpoint, data, seeds or Seeds.of(checkpoint), scratch, device, log)
        diverged_step = run.advance(terminated)
    return _publish(run.state, diverged_step, scratch, out)


class _Run:
    """A run under way: its model, optimiser, data and state."""

    def __init__(
        self,
        checkpoint: specs.Checkpoint,
        data: Prepared,
        seeds: Seeds,
        scratch: Path,
        device: torch.device,
        log: Callable[[str], None],
    ) -> None:
        self.training, self.data, self.log, self.scratch = checkpoint.training, data, log, scratch
        network = checkpoint.network
        model = build(network, data.input_shape, data.outputs, seeds.initialisation)
        self.model = model.to(device)
        self.optimiser = make_optimiser(self.model, self.training)
        self.train_x, self.train_y = data.train_x.to(device), data.train_y.to(device)
        self.test_x, self.test_y = data.test_x.to(device), data.test_y.to(device)
        samples = len(data.train_y)
        size = self.training.batch_size
        self.batch_size = samples if size == "full" else min(size, samples)
        _check_batch(self.model, self.batch_size)
        self.order = None if size == "full" else BatchOrder(samples, self.batch_size, seeds.order)
        self.snapshot_metadata: dict[str, Any] = {
            "network": network.model_dump(mode="json"),
            "input_shape": list(data.input_shape),
            "outputs": data.outputs,
        }
        self.identity: dict[str, Any] = {
            "checkpoint": checkpoint.model_dump(mode="json", context=IDENTITY),
            "seeds": [str(seeds.initialisation), str(seeds.order)],
            "device": device.type,
            "torch": torch.__version__,
        }
        restored = load_state(scratch, self.identity, self.model, self.optimiser, log)
        log(
            f"training on {device.type}: {sum(p.numel() for p in self.model.parameters())} "
            f"parameters, {samples} samples in batches of {self.batch_size}, "
            f"{self.training.steps} steps"
        )
        if restored:
            log(f"resuming after step {restored.step} of {self.training.steps}")
        self.state = restored or State()

    def advance(self, terminated: threading.Event) -> int | None:
        """Go on to the end; return the step at which training diverged, or None."""
        steps = self.training.steps
        snapshots = frozenset(snapshot_steps(steps, self.training.snapshots))
        progress = _Progress(self.state.step, steps, self.log)
        saved_at, saved_step = time.monotonic(), self.state.step
        while True:
            step = self.state.step
            name = snapshot_path(self.scratch, step).name
            if step in snapshots and name not in self.state.snapshots and not self._snapshot(step):
                return self._diverged(step)
            due = step % self.training.save_every == 0 or time.monotonic() > saved_at + SAVE_SECONDS
            if step > saved_step and (due or step == steps or terminated.is_set()):
                save_state(self.scratch, self.identity, self.state, self.model, self.optimiser)
                saved_at, saved_step = time.monotonic(), step
            if step == steps:
                self.log(f"finished after {steps} steps")
                return None
            if terminated.is_set():
                raise Interrupted(f"interrupted after step {step}; repeat the command to go on")
            loss, accuracy = self._step(step)
            if loss is None:
                return self._diverged(step)
            self.state.step = step + 1
            progress(step + 1, loss, accuracy, learning_rate(self.training, step))

    def _step(self, step: int) -> tuple[float | None, Callable[[], float]]:
        """Take one optimiser step; return the loss before it (None: not finite) and accuracy."""
        if self.order is None:
            raw, labels = self.train_x, self.train_y
        else:
            batch = torch.from_numpy(self.order(step)).to(self.train_x.device)
            raw, labels = self.train_x[batch], self.train_y[batch]
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        outputs = self.model(self.data.normalise(raw))
        loss = loss_of(outputs, labels, self.training.loss).mean()
        value = loss.item()
        if not _is_finite(value):
            return None, _nothing
        loss.backward()  # type: ignore[no-untyped-call]
        if self.training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
        rate = learning_rate(self.training, step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimiser.step()
        return value, lambda: hits(outputs.detach(), labels).double().mean().item()

    def _snapshot(self, step: int) -> bool:
        """Evaluate and write a snapshot; return False where the state is not finite."""
        state = self.model.state_dict()
        if not all(bool(torch.isfinite(tensor).all()) for tensor in state.values()):
            return False
        kind, normalise = self.training.loss, self.data.normalise
        outputs = self.data.outputs
        train_loss, train_accuracy = evaluate(
            self.model, self.train_x, self.train_y, kind, normalise, outputs
        )
        test_loss, test_accuracy = evaluate(
            self.model, self.test_x, self.test_y, kind, normalise, outputs
        )
        if not _is_finite(train_loss):
            return False
        path = snapshot_path(self.scratch, step)
        write_tensors(path, state, {**self.snapshot_metadata, "step": step})
        self.state.snapshots[path.name] = file_digest(path)
        row = {
            "step": step,
            "train_loss": train_loss,
            "test_loss": test_loss if _is_finite(test_loss) else None,
            "train_accuracy": train_accuracy,
            "test_accuracy": test_accuracy,
            "learning_rate": learning_rate(self.training, step),
        }
        for key, value in row.items():
            self.state.history[key].append(value)
        return True

    def _diverged(self, step: int) -> int:
        self.log(f"diverged after {step} steps: the loss or a weight is not finite")
        return step


class _Progress:
    """Tells how a run is doing, at most once in LOG_SECONDS."""

    def __init__(self, start: int, steps: int, log: Callable[[str], None]) -> None:
        self.start, self.steps, self.log = start, steps, log
        self.started = self.told = time.monotonic()

    def __call__(self, step: int, loss: float, accuracy: Callable[[], float], rate: float) -> None:
        now = time.monotonic()
        if now < self.told + LOG_SECONDS:
            return
        self.told = now
        speed = (step - self.start) / (now - self.started)
        left = (self.steps - step) / speed
        self.log(
            f"step {step}/{self.steps}  loss {loss:.4g}  accuracy {accuracy():.1%}  "
            f"rate {rate:.3g}  {speed:.1f} steps/s  {left:.0f} s left"
        )


def make_optimiser(model: Model, training: specs.Training) -> torch.optim.Optimizer:
    """Return the optimiser, with one group of parameters per learning-rate factor.

    Each group has its `factor` on the base rate. The weight decay is one coefficient for all.
    """
    factors = model.learning_rate_factors(training.optimiser)
    groups: dict[float, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(factors[name], []).append(parameter)
    options = [{"params": group, "factor": factor} for factor, group in groups.items()]
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimiser == "adam":
        return torch.optim.Adam(options, lr=rate, weight_decay=decay)
    return torch.optim.SGD(options, lr=rate, momentum=training.momentum, weight_decay=decay)


def _check_batch(model: Model, batch_size: int) -> None:
    normalised = any(
        isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d)
        for module in model.modules()
    )
    if normalised and batch_size == 1:
        raise WidthlabError(
            "training.batch_size: 1 does not go with batch normalisation; use at least 2"
        )


def _publish(state: State, diverged_step: int | None, scratch: Path, out: Path) -> Summary:
    """Copy the snapshots to `out`, write the history last, and sum up."""
    out.mkdir(parents=True, exist_ok=True)
    for name, digest in state.snapshots.items():
        shutil.copyfile(scratch / name, out / name)
        # A writer that was taken for dead shares the scratch folder with the one that took over.
        if file_digest(out / name) != digest:
            raise WidthlabError(
                f"{scratch / name} is no longer what this run wrote; repeat the command"
            )
    status: Literal["finished", "diverged"] = "finished" if diverged_step is None else "diverged"
    write_history(out, {"status": status, "diverged_step": diverged_step, **state.history})
    snapshots = tuple(int(step) for step in state.history["step"] if step is not None)
    return Summary(status, diverged_step, snapshots, state.history)


@contextmanager
def _terminations() -> Iterator[threading.Event]:
    """Note SIGTERM in an event while inside; only the main thread can listen for signals."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, frame: FrameType | None) -> None:
        event.set()

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGTERM, before)
    if event.is_set():
        # It came when all steps were taken: whoever listens outside should hear of it.
        signal.raise_signal(signal.SIGTERM)


def _is_finite(value: float) -> bool:
    return value - value == 0.0


def _nothing() -> float:
    return 0.0
