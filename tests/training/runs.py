"""One tiny training run, for the tests that repeat, kill or damage it."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import torch

from widthlab import specs, training
from widthlab.data import prepare

CPU = torch.device("cpu")


def checkpoint(network=None, width=12, depth=2, seed=0, data=None, **training):
    architecture = network or {"name": "residual_mlp", "normalisation": "batch"}
    return specs.Checkpoint.model_validate(
        {
            "network": {"architecture": architecture, "width": width, "depth": depth},
            "data": data or {"name": "gaussian", "train_samples": 50, "test_samples": 20},
            "training": {"batch_size": 8, "steps": 40, "save_every": 5, **training},
            "seed": seed,
            "study_seed": 0,
        }
    )


def run(spec, folder, log=lambda line: None):
    """Train `spec` with scratch and output under `folder`, as a job of its own would."""
    torch.set_num_threads(1)
    data = prepare(spec.data, Path("/nonexistent"))
    out, scratch = Path(folder) / "out", Path(folder) / "scratch"
    return training.train(spec, data, out=out, scratch=scratch, device=CPU, log=log)


def run_counting(spec, folder, counter):
    """Train, telling the number of steps taken through `counter` (shared with the parent)."""

    def log(line):
        if line.startswith("step "):
            counter.value = int(line.split("/")[0].removeprefix("step "))
            time.sleep(0.002)  # leave the parent time to strike

    training.LOG_SECONDS = 0.0
    run(spec, folder, log)


def run_with_death_at_rename(spec, folder, number, after):
    """Train, but be killed just before or after renaming a file for the `number`th time."""
    rename, count = Path.replace, 0

    def deadly(self, target):
        nonlocal count
        count += 1
        if count == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = rename(self, target)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    Path.replace = deadly
    run(spec, folder)


def digests(folder):
    """SHA-256 of every file that a run has put out, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((Path(folder) / "out").iterdir())
    }
