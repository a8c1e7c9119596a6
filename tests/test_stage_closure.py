"""The code digest of a stage holds all code that the stage runs: every stage runs here, watched.

Whatever of the package is executed below a stage's root function must lie in a definition that
`code_digest.closure` found by reading, or an edit of it would leave old results standing.
"""

import ast
import importlib
import pkgutil
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny
from PIL import Image

import widthlab
from widthlab import code_digest, experiments, stages, study
from widthlab.plan import Plan

SOURCE = Path(widthlab.__file__).resolve().parent
SOURCE_TEXT = str(SOURCE)
LOADERS = ("digits", "gaussian", "imagefolder", "textfile")
"""Data sets that need no download."""
PARTS = ("extract", "sweep", "figures")
ROOTS = [
    *(f"widthlab.data.{name}:prepare_{name}" for name in LOADERS),
    "widthlab.training:train",
    "widthlab.checkpoints.pretrained:fetch",
    *(f"widthlab.experiments.{name}:{part}" for name in experiments.names() for part in PARTS),
]
PAGE = "widthlab.reporting:build"

GAUSSIAN = {"name": "gaussian", "dimension": 5, "train_samples": 24, "test_samples": 8}
TANH = {"name": "residual_mlp", "activation": "tanh"}
PERCEPTRONS = {
    "relu": {"name": "mlp"},
    "batch": {"name": "mlp", "activation": "leaky_relu", "normalisation": "batch"},
    "one": {"name": "residual_mlp", "branch": "one_layer", "activation": "linear"},
    "half": {"name": "residual_mlp", "activation": "tanh", "bias_variance": 0.1},
}
DRAWS = {"width": [4, 32], "depth": 2, "draws": 8, "data": GAUSSIAN}
DRIFT = {"width": [4, 8], "depth": 2, "seeds": 2, "probe": 4, "data": GAUSSIAN}
FAMILIES = {
    "train_samples": 16,
    "test_samples": 8,
    "families": {
        "images": {
            "model": {"name": "resnet20"},
            "width": [1],
            "seeds": 1,
            "data": {"name": "digits", "train_samples": 20, "test_samples": 10},
            "training": {"steps": 2, "snapshots": 2, "batch_size": 8},
        },
        "features": {
            "model": TANH,
            "width": [2, 4],
            "depth": 1,
            "seeds": 1,
            "data": {**GAUSSIAN, "train_samples": 24},
            "training": {"loss": "mse", "steps": 2, "snapshots": 2, "batch_size": 8},
        },
    },
}
TEXT = {"name": "textfile", "length": 8, "train_samples": 16, "test_samples": 16}
ALIGNED = {
    "train_samples": 16,
    "test_samples": 16,
    "step_samples": [2, 4],
    "held_out_samples": [2, 4],
}
LANGUAGE = {
    "llama": {
        "model": {"name": "llama"},
        "data": {**TEXT, "tokenizer": "bpe", "vocabulary": 300},
        "training": {"optimiser": "adam", "batch_size": 4, "steps": 2, "snapshots": 2},
    },
    "fixed": {
        "model": {"name": "llama", "initialisation": "fixed"},
        "depth": 1,
        "seeds": 2,
        "data": TEXT,
        "training": {"steps": 1, "snapshots": 2},
    },
    "pythia": {
        "model": {
            "name": "pythia",
            "layers": 2,
            "checkpoints": {8: "narrow", 16: "wide"},
            "dtype": "bfloat16",
        },
        "data": {**TEXT, "tokenizer": "narrow", "path": "text.txt"},
    },
}
FAMILY = {"width": [8, 16]}
DEEP = {"inputs": 3, "steps": 2, "data": GAUSSIAN}
SECTIONS = [
    {
        "phase_diagram": {
            **DEEP,
            "models": {"tanh": {}, "relu": {"activation": "relu"}},
            "sigma_v": [0.1, 0.5, 1, 4, 50],
            "width": [3, 5],
            "depth": [2, 4],
            "hidden": 40,
            "draws": 4,
        },
        "mean_ode": {
            **DEEP,
            "depth": [4, 8, 16],
            "hidden": [1, 4],
            "more_seeds": [{"hidden": 4, "seeds": 16}],
            "width": 3,
            "seeds": 8,
            "width_sweep": {
                "width": [12, 16, 20],
                "depth": 16,
                "hidden": 8,
                "embeddings": 4,
                "seeds": 4,
            },
            "reference": {"depth": 64, "hidden": 8, "seeds": 4},
            "particles": 64,
        },
        "lazy_ode": {
            **DEEP,
            "alpha": [1, 2, 4, 5, 64],
            "sizes": [{"depth": 4, "hidden": 256}, {"depth": 32, "hidden": 64}],
            "width": 3,
            "seeds": 4,
            "particles": 32,
            "replicates": 12,
        },
        "residual_scale": {**DEEP, "depth": [2, 4], "width": 3, "hidden": 2, "seeds": 4},
        "alignment": {**FAMILIES, "step_samples": [2, 4], "held_out_samples": [2], "draws": 5},
        "intervention": {
            **FAMILIES,
            "step_samples": 4,
            "held_out_samples": 4,
            "scales": [0.01, 0.1],
        },
        "variance": {**DRAWS, "models": {k: PERCEPTRONS[k] for k in ("relu", "batch", "half")}},
        "gradient_correlation": {**DRAWS, "models": {k: PERCEPTRONS[k] for k in ("relu", "one")}},
        "ntk_init": {
            **DRAWS,
            "depth": [1, 2],
            "models": {k: {**PERCEPTRONS[k], "parameterisation": "ntk"} for k in ("relu", "half")},
        },
        "depth_scale": {
            **DRAWS,
            "depth": 8,
            "width": [4, 128],
            "models": {
                **{k: PERCEPTRONS[k] for k in ("relu", "half")},
                "chaotic": {"name": "mlp", "activation": "tanh", "weight_variance": 3.0},
            },
        },
        "activations": {
            **{key: DRAWS[key] for key in ("draws", "data")},
            "width": [4, 8],
            "ratio": [0.5, 1.0],
            "models": {
                **{k: PERCEPTRONS[k] for k in ("relu", "half")},
                "tanh": {"name": "mlp", "activation": "tanh"},
                "batch": {"name": "mlp", "normalisation": "batch"},
            },
        },
        "expansion": {
            "families": {
                "net": {
                    "model": {"name": "mlp"},
                    "width": [4, 8],
                    "depth": 2,
                    "seeds": 2,
                    "data": {**GAUSSIAN, "test_samples": 80},
                    "training": {"steps": 3, "snapshots": 2},
                }
            },
            "train_samples": 24,
            "test_samples": 60,
            "step_samples": 12,
            "held_out_samples": 8,
        },
    },
    {
        "ntk_drift": {
            **DRIFT,
            "models": {
                "resnet": {"name": "resnet20"},
                "layer": {"name": "mlp", "normalisation": "layer"},
            },
            "width": [1, 2],
            "seeds": 1,
            "kernel": "full",
            "data": {"name": "digits", "train_samples": 20, "test_samples": 10},
            "training": {
                "optimiser": "adam",
                "schedule": "cosine",
                "warmup_steps": 1,
                "clip_norm": 1.0,
                "batch_size": 8,
                "steps": 2,
                "snapshots": 2,
                "save_every": 1,
            },
        },
    },
    {
        "ntk_drift": {
            **DRIFT,
            "models": {"diverges": {"name": "mlp", "parameterisation": "ntk"}},
            "data": {"name": "imagefolder", "path": "images", "size": 4},
            "training": {
                "loss": "mse",
                "learning_rate": 1e12,
                "batch_size": "full",
                "schedule": "linear",
                "steps": 20,
                "snapshots": 3,
            },
        }
    },
    {
        "alignment": {
            **ALIGNED,
            "families": {label: {**FAMILY, **family} for label, family in LANGUAGE.items()},
        },
    },
    {
        "ntk_drift": {
            **DRIFT,
            "models": {
                "ntk": {**TANH, "parameterisation": "ntk", "bias_variance": 0.1},
                "mup": {**TANH, "parameterisation": "mup", "normalisation": "batch"},
            },
            "training": {"loss": "mse", "momentum": 0.5, "steps": 3, "snapshots": 3},
        }
    },
]


class Watch:
    """Collects the code of the package that runs below each of some functions."""

    def __init__(self):
        self.ran = defaultdict(set)
        self._open = []
        self._seen = {}

    def function(self, root):
        """Return the function at `root` ("module:name"), watched from its call to its return."""
        module, _, name = root.partition(":")
        original = getattr(importlib.import_module(module), name)

        def watched(*arguments, **named):
            self._open.append(root)
            self._seen.clear()
            sys.settrace(self._note)
            try:
                return original(*arguments, **named)
            finally:
                sys.settrace(None)
                self._open.pop()
                self._seen.clear()
                if self._open:
                    sys.settrace(self._note)

        return watched

    def _note(self, frame, event, argument):
        """Note a call; returning nothing asks not to be told of its lines."""
        code = frame.f_code
        # By id, since hashing code is slow, and there are millions of calls.
        if id(code) in self._seen:
            return
        self._seen[id(code)] = code
        if code.co_filename.startswith(SOURCE_TEXT):
            for root in self._open:
                self.ran[root].add(code)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The code that every root function ran, over studies that go through all kinds of cells."""
    for module in pkgutil.walk_packages([str(SOURCE)], "widthlab."):
        # Importing a module runs its classes' bodies, whether a stage uses them or not.
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    folder = tmp_path_factory.mktemp("closure")
    watch = Watch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _write_images(folder / "images")
        for name, width in (("narrow", 8), ("wide", 16)):
            tiny.save_neox(folder / name, width)
        (folder / "text.txt").write_text(tiny.TEXT)
        for root in ROOTS:
            module, _, name = root.partition(":")
            patch.setattr(importlib.import_module(module), name, watch.function(root))
        build = watch.function(PAGE)
        for number, sections in enumerate(SECTIONS):
            plan = Plan.of(study.parse({"name": f"study{number}", "experiments": sections}))
            for work in plan.all_work():
                if work.stage == "sweep" and number == len(SECTIONS) - 1:
                    build(plan, "config.yaml")  # with a hole: the cells are there, not the sweep
                stages.make(plan.results, work, "cpu", lambda line: None)
            if number == 0:  # drawing is slow, and so every figure is drawn once
                build(plan, "config.yaml")
    return watch.ran


def _write_images(folder):
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = generator.integers(0, 256, (6, 7, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def definition_of(code):
    """Return (module, name) of the top-level definition in which a piece of code stands."""
    path = Path(code.co_filename)
    parts = ["widthlab", *path.relative_to(SOURCE).with_suffix("").parts]
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    for start, end, names in _statements(path):
        if start <= code.co_firstlineno <= end:
            return module, names
    raise AssertionError(f"{code} stands in no statement of {path}")


@cache
def _statements(path):
    """Return first line, last line and defined names of the top-level statements of a file."""
    found = []
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        decorators = getattr(statement, "decorator_list", [])
        start = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        names = tuple(code_digest._defined(statement)) or ("",)
        found.append((start, statement.end_lineno, names))
    return found


def missed(codes, *roots):
    """Return what ran and is in no closure of the roots."""
    known = frozenset().union(*(code_digest.closure(root) for root in roots))
    executed = {
        definition_of(code)
        for code in codes
        if code.co_filename.endswith(".py") and code.co_name != "<module>"
    }
    return sorted(
        (module, names)
        for module, names in executed
        if not any((module, name) in known for name in names)
    )


@pytest.mark.parametrize("root", ROOTS)
def test_all_code_that_a_stage_runs_is_in_its_digest(ran, root):
    module, _, name = root.partition(":")
    assert (module, (name,)) in {definition_of(code) for code in ran[root]}
    assert missed(ran[root], root) == []


def test_all_code_that_makes_the_page_is_in_its_digest(ran):
    """The address of a report takes in its figures, and through its sweeps their code."""
    parts = [f"widthlab.experiments.{n}:{p}" for n in experiments.names() for p in PARTS[1:]]
    assert missed(ran[PAGE], PAGE, *parts) == []


def test_every_experiment_is_watched():
    assert {name for sections in SECTIONS for name in sections} == set(experiments.names())


def test_the_watch_sees_code_that_a_digest_lacks(ran):
    """The check can fail: what a sweep runs is not in the digest of an extraction."""
    extract, sweep = ROOTS[-3], ROOTS[-2]
    assert missed(ran[sweep], extract) != []
