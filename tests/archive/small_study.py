"""A small study to run and to change."""

import shutil
from dataclasses import replace

import xarray as xr

from widthlab import stages
from widthlab import study as studies
from widthlab.plan import Plan
from widthlab.store import datasets
from widthlab.store.manifest import read, tree_digest
from widthlab.store.publish import folder, payload

DATA = {"name": "gaussian", "dimension": 4, "train_samples": 16, "test_samples": 8}
VARIANCE = {
    "models": {"relu": {"name": "mlp"}, "tanh": {"name": "mlp", "activation": "tanh"}},
    "width": [4, 8],
    "depth": 1,
    "draws": 8,
    "inputs": 2,
    "data": DATA,
}
CORRELATION = {**VARIANCE, "models": {"relu": {"name": "mlp"}}, "depth": 2}


def small(results, variance=None, correlation=True, **keys):
    """Return a small study with changes to its sections and keys."""
    sections = {"variance": {**VARIANCE, **(variance or {})}}
    if correlation:
        sections["gradient_correlation"] = CORRELATION
    config = {"name": "small", "results": str(results), "device": "cpu", "experiments": sections}
    return studies.parse({**config, **keys})


def run(study):
    """Run all stages of a study and return its plan."""
    plan = Plan.of(study)
    for work in plan.all_work():
        stages.make(plan.results, work, "cpu", print)
    return plan


def changed_sweep(plan, experiment, change):
    """Put a changed sweep in the place of a finished one, as if it had come out so."""
    (work,) = (w for w in plan.sweeps.values() if w.specification["experiment"] == experiment)
    home, path = folder(plan.results, work), payload(plan.results, work)
    before = datasets.open_dataset(path).load()
    with xr.set_options(keep_attrs=True):
        after = change(before)
    shutil.rmtree(path)
    datasets.write(after.drop_encoding(), path)
    replace(read(home), digest=tree_digest(path)).write(home)
