"""What a study of 10,000 cells costs before any of it runs, and after all of it has run.

`python tests/benchmarks/bench_plan.py` prints the table; `rows()` returns it. The finished
studies are made of manifests only.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from pairs import Pair, in_turns, print_table

from widthlab import reporting
from widthlab import study as studies
from widthlab.archive import receipts
from widthlab.plan import Plan, training_work
from widthlab.store import manifest as manifests
from widthlab.store.publish import PAYLOADS, folder

ROOT = Path(__file__).resolve().parents[2]
CELLS = 10_000
LINEAR = 20.0
"""Ten times the cells: 10 if planning is linear, 100 if it were quadratic."""
DRY_RUN, DRY_RUN_MB = 30.0, 1000.0
NO_OP = 5.0

READ_AND_PLAN = (
    "from pathlib import Path; from widthlab import study; from widthlab.plan import Plan; "
    "Plan.of(study.read(Path('config.yaml')))"
)

# A process takes over the peak memory of the one that starts it, so that must be a small one.
SMALL_PARENT = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(code)
"""


def config(cells: int, seed: int = 0, per_job: int | None = None) -> dict[str, Any]:
    """Return a study of `cells` cells, half of which need a checkpoint of their own."""
    widths = list(range(16, 66))
    models = {
        f"m{i}": {"name": "mlp", "weight_variance": 1.9 + i / 1000}
        for i in range(cells // 2 // len(widths))
    }
    drift = {
        way: {"name": "residual_mlp", "activation": "tanh", "parameterisation": way}
        for way in ("ntk", "mup")
    }
    return {
        "name": "large",
        "seed": seed,
        "device": "cpu",
        "cells_per_job": per_job,
        "checkpoints_per_job": per_job,
        "experiments": {
            "variance": {"models": models, "width": widths, "depth": 4, "draws": 10},
            "ntk_drift": {
                "models": drift,
                "width": [32, 64, 128, 256, 512],
                "seeds": cells // 20,
                "training": {"loss": "mse", "batch_size": "full"},
            },
        },
    }


def _planning(cells: int, seeds: Iterator[int]) -> float:
    """Return the time to parse and plan a study whose checkpoints no cache knows."""
    raw = config(cells, seed=next(seeds))
    training_work.cache_clear()
    gc.collect()
    start = time.process_time()
    plan = Plan.of(studies.parse(raw))
    used = time.process_time() - start
    if len(plan.cells) != cells:
        raise RuntimeError(f"the study has {len(plan.cells)} cells, not {cells}")
    return used


class Process:
    """A command in a folder, run as often as it is called; remembers its peak memory."""

    def __init__(self, home: Path, *command: str, says: str = "") -> None:
        self.home, self.command, self.says = home, command, says
        self.peak_mb = 0.0

    def __call__(self) -> float:
        """Run it and return the core seconds of it and its children."""
        done = subprocess.run(
            [sys.executable, "-c", SMALL_PARENT, *self.command],
            cwd=self.home,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        if done.returncode or self.says not in done.stderr:
            raise RuntimeError(f"{' '.join(self.command)} in {self.home}:\n{done.stderr}")
        seconds, peak = map(float, done.stdout.split())
        self.peak_mb = max(self.peak_mb, peak / 1024)
        return seconds


def snakemake(home: Path, *options: str, says: str = "") -> Process:
    """Return Snakemake on the study in a folder."""
    program = str(Path(sys.executable).parent / "snakemake")
    return Process(home, program, "--snakefile", str(ROOT / "Snakefile"), *options, says=says)


def finish(home: Path) -> None:
    """Write the manifests and the report's files that a finished study would have."""
    plan = Plan.of(studies.read(home / "config.yaml"))
    # Nothing here has to outlive a power cut.
    with patch("os.fsync"):
        for work in plan.all_work():
            place = folder(home / plan.results, work)
            place.mkdir(parents=True)
            manifests.Manifest(
                address=work.address,
                stage=work.stage,
                specification=work.specification,
                inputs=[source.address for source in work.inputs],
                code=work.code,
                payload=PAYLOADS[work.stage],
                digest="0" * 64,
            ).write(place)
    (home / plan.results / "archive").mkdir()
    receipt = home / receipts.receipt(plan)
    receipt.parent.mkdir()
    receipt.write_text(json.dumps({"digests": dict.fromkeys(plan.sweeps, "0" * 64)}))
    report = home / reporting.report_folder(plan.study)
    report.mkdir(parents=True)
    for name in ("index.html", "claims.json"):
        (report / name).touch()
    (home / reporting.stamp(plan.study, plan.report.address)).touch()


def _pair(what: str, long: Process, short: Process, names: tuple[str, str], **limits: Any) -> Pair:
    times = in_turns(long, short, turns=3)
    return Pair(what, *names, *times, peaks_mb=(long.peak_mb, short.peak_mb), **limits)


def rows() -> Iterator[Pair]:
    """Measure, and yield one row after the other."""
    embedded_config = (ROOT / "config.yaml").read_text(encoding="utf-8")
    _planning(CELLS // 10, iter([2**40]))  # the digests of the code, once
    seeds = iter(range(2**40 + 1, 2**41))
    names = f"{CELLS:,} cells", f"{CELLS // 10:,} cells"
    times = in_turns(
        partial(_planning, CELLS, seeds), partial(_planning, CELLS // 10, seeds), turns=7
    )
    yield Pair("parse and plan", *names, *times, at_most=LINEAR)

    with tempfile.TemporaryDirectory() as scratch:
        studies_of = {
            "large": yaml.safe_dump(config(CELLS)),
            "single": yaml.safe_dump(config(CELLS, per_job=1)),
            "embedded": embedded_config,
        }
        for name, text in studies_of.items():
            Path(scratch, name).mkdir()
            Path(scratch, name, "config.yaml").write_text(text, encoding="utf-8")
        large, single, embedded = (Path(scratch, name) for name in studies_of)
        imports = Process(Path(scratch), sys.executable, "-c", "import torch")
        yield _pair(
            "parse and plan, from a cold start",
            Process(large, sys.executable, "-c", READ_AND_PLAN),
            imports,
            (names[0], "import torch"),
            long_limit_s=DRY_RUN,
        )
        limits = {"long_limit_s": DRY_RUN, "peak_limit_mb": DRY_RUN_MB}
        names = f"{CELLS:,} cells", "embedded study"
        for home, way in ((large, ""), (single, ", one cell to a job")):
            yield _pair(
                f"snakemake -n, nothing done{way}",
                snakemake(home, "-n", "--quiet"),
                snakemake(embedded, "-n", "--quiet"),
                names,
                **limits,
            )
        done = {}
        for home in (single, embedded):
            finish(home)
            done[home] = snakemake(home, "--cores", "2", says="Nothing")
        yield _pair("snakemake, all done", done[single], done[embedded], names, **limits)
        yield _pair(
            "snakemake, all done",
            done[embedded],
            imports,
            ("embedded study", "import torch"),
            long_limit_s=NO_OP,
        )


if __name__ == "__main__":
    sys.exit(0 if print_table(rows()) else 1)
