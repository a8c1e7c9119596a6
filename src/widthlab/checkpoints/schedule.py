"""What happens at which step: batches, learning rates and snapshots, as pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from widthlab import specs
from widthlab.address import canonical_json, digest

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Seeds:
    """The two random streams of a training run: the initial weights, and the batch order."""

    initialisation: int
    order: int

    @classmethod
    def of(cls, checkpoint: specs.Checkpoint) -> Seeds:
        """Return the seeds of a checkpoint: from its two seeds and its network.

        They are independent between widths, as fits over widths assume; and the same for every
        way of training, so that two learning rates are compared from the same initial weights.
        """
        words = checkpoint.model_dump(mode="json", include={"network", "seed", "study_seed"})
        sequence = np.random.SeedSequence(int(digest(canonical_json(words)), 16))
        first, second = sequence.generate_state(2, np.uint64)
        return cls(initialisation=int(first), order=int(second))


def snapshot_steps(steps: int, count: int) -> tuple[int, ...]:
    """Return `count` steps from 0 to `steps`, both included, evenly spaced in log step from 1 on.

    Where rounding would give a step twice, the next ones are taken instead. Fewer than `count`
    only where there are fewer steps.
    """
    last = min(count, steps + 1) - 1
    chosen = [0]
    for number in range(1, last + 1):
        ideal = round(steps ** ((number - 1) / (last - 1))) if last > 1 else steps
        chosen.append(min(max(ideal, chosen[-1] + 1), steps - (last - number)))
    return tuple(chosen)


def learning_rate(training: specs.Training, step: int) -> float:
    """Return the learning rate of the update from `step` to `step` + 1.

    Warm-up of w steps takes the fractions 1/(w+1) … w/(w+1) of the base rate. After it, the rate
    is constant, or falls as ½(1 + cos πp) or 1 - p with p the share of the rest that is done, to
    zero at the end.
    """
    warmup = training.warmup_steps
    if step < warmup:
        return training.learning_rate * (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / (training.steps - warmup))
    match training.schedule:
        case "cosine":
            return training.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
        case "linear":
            return training.learning_rate * (1.0 - done)
        case "constant":
            return training.learning_rate


class BatchOrder:
    """Which samples each step takes: a function of (seed, step) alone.

    Every epoch is a fresh permutation of all samples, cut into batches of `batch_size`; the last
    one is what remains. A remainder of a single sample joins the batch before, since batch
    normalisation is not defined for one sample.
    """

    def __init__(self, samples: int, batch_size: int, seed: int) -> None:
        self.samples, self.seed = samples, seed
        self.batch_size = min(batch_size, samples)
        remainder = samples % self.batch_size
        joined = remainder == 1 and self.batch_size > 1
        self.batches_per_epoch = samples // self.batch_size + (remainder > 0 and not joined)
        self._epoch = -1
        self._order: Indices = np.empty(0, dtype=np.int64)

    def __call__(self, step: int) -> Indices:
        """Return the indices of the samples of the batch at `step`."""
        epoch, batch = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            sequence = np.random.SeedSequence([self.seed, epoch])
            self._order = np.random.default_rng(sequence).permutation(self.samples)
            self._epoch = epoch
        start = batch * self.batch_size
        last = batch == self.batches_per_epoch - 1
        return self._order[start:] if last else self._order[start : start + self.batch_size]
