"""A copy of the house in a folder of its own, with a tiny study: to run, edit, break and kill."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PATIENCE = 300
"""Seconds after which a command or a wait has failed, whatever the load of the machine."""

DATA = {"name": "gaussian", "dimension": 6, "train_samples": 32, "test_samples": 16}
STUDY = {
    "name": "tiny",
    "cells_per_job": 1,
    "checkpoints_per_job": 1,
    "experiments": {
        "variance": {
            "models": {"relu": {"name": "mlp", "activation": "relu"}},
            "width": [8, 16],
            "depth": 2,
            "draws": 8,
            "inputs": 2,
            "data": DATA,
        },
        "ntk_drift": {
            "models": {
                "ntk": {"name": "residual_mlp", "activation": "tanh", "parameterisation": "ntk"}
            },
            "width": [8, 16],
            "depth": 1,
            "seeds": 1,
            "training": {
                "loss": "mse",
                "learning_rate": 0.1,
                "batch_size": 16,
                "steps": 2000,
                "snapshots": 3,
                "save_every": 50,
            },
            "probe": 8,
            "data": DATA,
        },
    },
}
"""All stages in ten jobs, and training that takes seconds, so that it can be killed midway."""


def changed(**changes):
    """Return the study with changes by dotted key: `experiments__variance__inputs=100`."""
    study = json.loads(json.dumps(STUDY))
    for key, value in changes.items():
        *path, last = key.split("__")
        at = study
        for step in path:
            at = at[step]
        at[last] = value
    return study


class Laboratory:
    """A folder with the house and its study, as a user would have it."""

    def __init__(self, folder):
        self.folder = Path(folder)

    @classmethod
    def build(cls, folder, study=STUDY):
        """Copy what a run needs of the repository, and write the study to its config.yaml."""
        folder = Path(folder)
        shutil.copytree(
            ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
        for name in ("workflow", "envs"):
            shutil.copytree(ROOT / name, folder / name)
        shutil.copy(ROOT / "Snakefile", folder)
        shutil.copy(ROOT / "profiles", folder / "profiles", follow_symlinks=False)
        laboratory = cls(folder)
        laboratory.configure(study)
        return laboratory

    def copy(self, folder):
        """Return a copy with its results; file times are those of now."""
        shutil.copytree(self.folder, folder, symlinks=True, copy_function=shutil.copy)
        return Laboratory(folder)

    def configure(self, study):
        text = study if isinstance(study, str) else yaml.safe_dump(study, sort_keys=False)
        (self.folder / "config.yaml").write_text(text, encoding="utf-8")

    def edit(self, path, old, new):
        """Replace a piece of a file of the package; it must be there once."""
        file = self.folder / "src/widthlab" / path
        text = file.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
        file.write_text(text.replace(old, new), encoding="utf-8")

    # ── running ─────────────────────────────────────────────────────────────────────────────

    def start(self, *command, **variables):
        """Start a command in the folder, in a process group and with variables of its own."""
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("SNAKEMAKE_")
        }
        environment.update(
            PATH=f"{BIN}{os.pathsep}{environment['PATH']}",
            PYTHONPATH=str(self.folder / "src"),
            OMP_NUM_THREADS="1",
            MKL_NUM_THREADS="1",
        )
        environment |= variables
        with (self.folder / "output.txt").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *command):
        """Run a command and return its exit code and all that it wrote."""
        before = self._output()
        code = self.start(*command).wait(PATIENCE)
        return code, self._output()[len(before) :].decode()

    def snakemake(self, *arguments):
        """Run the documented command."""
        return self.run("snakemake", "--cores", "2", *arguments)

    def finish(self, *arguments):
        """Run the documented command to a good end and return what it wrote."""
        code, output = self.snakemake(*arguments)
        assert code == 0, output
        return output

    def planned(self, *arguments):
        """Return what a dry run would do: for each job its rule and readable address, sorted."""
        output = self.finish("--dry-run", *arguments)
        nothing = "Nothing to be done" in output
        jobs = jobs_of(output)
        assert nothing != bool(jobs), output
        return jobs

    def output(self):
        """Return all that the commands in the folder wrote so far."""
        return self._output().decode()

    def _output(self):
        file = self.folder / "output.txt"
        return file.read_bytes() if file.exists() else b""

    # ── results ─────────────────────────────────────────────────────────────────────────────

    def manifests(self):
        """Return all manifests by readable address (without the hash) and stage."""
        found = {}
        for file in self.results.glob("*/*/manifest.json"):
            manifest = json.loads(file.read_text())
            found[f"{manifest['stage']} {manifest['address'].rpartition('-')[0]}"] = manifest
        return found

    def home(self, manifest):
        """Return the folder of the result with this manifest."""
        (home,) = self.results.glob(f"*/{manifest['address']}")
        return home

    def digests(self):
        """Return the digests of all payloads."""
        return {name: manifest["digest"] for name, manifest in self.manifests().items()}

    def remove(self, *names):
        """Remove the results with these readable names."""
        manifests = self.manifests()
        for name in names:
            shutil.rmtree(self.home(manifests[name]))

    @property
    def results(self):
        study = yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8"))
        return self.folder / study.get("results", "results")

    @property
    def report(self):
        return self.folder / "reports/tiny"

    def claims(self):
        return json.loads((self.report / "claims.json").read_text())

    # ── killing ─────────────────────────────────────────────────────────────────────────────

    def processes(self, word):
        """Return the ids of the processes that run in this folder with `word` as an argument."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                here = entry.name.isdigit() and (entry / "cwd").readlink() == self.folder
                if here and word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def start_training(self, **variables):
        """Start the documented command, and return its process once training has saved anew."""
        before = self.saved()
        process = self.start("snakemake", "--cores", "2", **variables)
        self.wait_for_saving(process, before)
        return process

    def wait_for_saving(self, process, before):
        """Wait until training has saved after the time `before`."""
        wait_until(lambda: process.poll() is not None or self.saved() not in (None, before))
        assert process.poll() is None, self._output().decode()

    def saved(self):
        """Return when training last saved a state from which it can go on, or None."""
        try:
            return max(
                file.stat().st_mtime_ns for file in self.results.glob("scratch/*/state.safetensors")
            )
        except (OSError, ValueError):
            return None


def jobs_of(output):
    """Return the jobs that an output of Snakemake names: rule and readable address, sorted."""
    found = set(re.findall(r"^Job \d+: (\w+) (\S+)$", output, flags=re.MULTILINE))
    return sorted(
        rule if rule in ("report", "archive") else f"{rule} {address.rpartition('-')[0]}"
        for rule, address in found
    )


def wait_until(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
