"""A small study whose stages run by the command line, each in a process forked in a moment."""

import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from widthlab import cli, experiments, study
from widthlab.plan import Plan
from widthlab.store.manifest import MANIFEST, read, tree_digest
from widthlab.store.publish import folder, payload

PATIENCE = 300
"""Seconds after which a process hangs, whatever the load of the machine."""
STUDY = study.parse(
    {
        "name": "small",
        "experiments": {
            "ntk_drift": {
                "models": {"tanh": {"name": "residual_mlp", "activation": "tanh"}},
                "width": [4, 8],
                "depth": 1,
                "seeds": 2,
                "training": {"steps": 300, "snapshots": 3, "save_every": 10, "batch_size": 8},
                "probe": 6,
                "data": {
                    "name": "gaussian",
                    "dimension": 6,
                    "train_samples": 32,
                    "test_samples": 16,
                },
            }
        },
    }
)


@dataclass(frozen=True)
class Done:
    """How a command ended and what it wrote to the terminal."""

    code: int
    terminal: str


class Running:
    """A command under way in a process of its own."""

    def __init__(self, process, terminal):
        self._process, self._terminal = process, terminal

    def kill(self):
        """Kill the process, and say whether it still ran."""
        self._process.kill()
        return self.done().code == -signal.SIGKILL

    def stop(self):
        """Ask the process to stop, as a scheduler does."""
        self._process.terminate()
        return self.done()

    def done(self):
        """Wait for the end."""
        self._process.join(PATIENCE)
        return Done(self._process.exitcode, self._terminal.read_text())


class Small:
    """A folder with the small study and its results."""

    plan = Plan.of(STUDY)

    def __init__(self, processes, home, results=None):
        self.processes, self.home = processes, Path(home)
        self.results = Path(results or self.home / "results")
        self.logs = self.home / "logs"

    def copy(self, home):
        """Return a copy with all results."""
        shutil.copytree(self.results, home / "results")
        return Small(self.processes, home)

    def only(self, stage):
        """Return the first work of a stage."""
        return next(work for work in self.plan.all_work() if work.stage == stage)

    def stage(self, stage):
        return [work for work in self.plan.all_work() if work.stage == stage]

    def batch(self, stage):
        """Return the only batch of a stage."""
        (batch,) = self.plan.batches[stage].values()
        return batch

    # ── running ─────────────────────────────────────────────────────────────────────────────

    def start(self, what, stage=None, log=None, fault=None):
        """Start the command of a work or a batch; return it once it has begun."""
        terminal = self.home / "terminal.txt"
        words = [what.stage, "--results", str(self.results)]
        words += ["--log", str(log or self.log(what))]
        if hasattr(what, "works"):
            words += ["--batch", what.name, "--study", self.plan.report.study_json]
        else:
            words += ["--address", what.address, "--spec", what.json]
        return self._start(words, terminal, fault)

    def command(self, *words, fault=None):
        """Run a command that people type."""
        return self._start(list(words), self.home / "terminal.txt", fault).done()

    def run(self, what, **options):
        """Run the command of a work or a batch to its end."""
        return self.start(what, **options).done()

    def _start(self, words, terminal, fault):
        self.home.mkdir(parents=True, exist_ok=True)
        here, there = self.processes.Pipe(duplex=False)
        process = self.processes.Process(
            target=_main, args=(words, str(self.home), str(terminal), there, fault)
        )
        process.start()
        assert here.poll(PATIENCE)
        assert here.recv_bytes() == b"begun"
        return Running(process, terminal)

    def log(self, what):
        name = what.name if hasattr(what, "works") else what.address
        return self.logs / f"{name}.log"

    # ── results ─────────────────────────────────────────────────────────────────────────────

    def is_finished(self, work):
        return (folder(self.results, work) / MANIFEST).exists()

    def finished(self, stage):
        return {work.address for work in self.stage(stage) if self.is_finished(work)}

    def digests(self):
        """Return the digests of all results that look finished, having checked that they are."""
        found = {}
        for work in self.plan.all_work():
            home = folder(self.results, work)
            if (home / MANIFEST).exists():
                manifest = read(home)
                assert manifest is not None, f"the manifest of {work.address} is damaged"
                assert manifest.digest == tree_digest(payload(self.results, work)), work.address
                found[work.address] = manifest.digest
        return found

    def leftovers(self):
        """Return what a good end leaves none of: temporary files, scratch, failures, leases."""
        kinds = ("scratch/*", "*/*/*.tmp", "*/*/failure.json", "*/*/.lease*")
        return [path for kind in kinds for path in self.results.glob(kind)]

    def remove(self, *stages):
        """Remove all results of some stages."""
        for work in (work for stage in stages for work in self.stage(stage)):
            shutil.rmtree(folder(self.results, work))


def _main(words, home, terminal, begun, fault):
    """Run the command line as a process of its own would."""
    os.chdir(home)
    out = os.open(terminal, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    import torch

    torch.set_num_threads(1)
    sys.argv = ["widthlab", *words]
    if fault is not None:
        fault()
    begun.send_bytes(b"begun")
    cli.main(words)


def one_cell(then):
    """Have the measuring of the first cell do something else."""
    module = experiments.load("ntk_drift")
    first, measure = Small.plan.cells[next(iter(Small.plan.cells))], module.extract

    def extract(cell, inputs):
        if cell.model_dump(mode="json") == first.specification["cell"]:
            then()
        return measure(cell, inputs)

    module.extract = extract


def killing():
    """The first cell kills its process, as one that needs more memory than there is."""
    one_cell(lambda: os.kill(os.getpid(), signal.SIGKILL))


def seconds(running):
    """Return how long a command that has begun takes to its end."""
    start = time.monotonic()
    done = running.done()
    assert done.code == 0, done.terminal
    return time.monotonic() - start
