"""How far the neural tangent kernel moves in training, against width.

Networks are trained at several widths and seeds; at every snapshot the empirical NTK of held-out
inputs is measured and compared with that of the initialisation. In the NTK parameterisation the
relative drift |Θₜ − Θ₀|/|Θ₀| is of order 1/N at a small learning rate; in muP features keep
moving at any width; elsewhere, and with batch normalisation, the exponent is an open measurement.
Sources: Jacot et al. (2018); Huang & Yau (2020); Dyer & Gur-Ari (2020); Yang & Hu (2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from widthlab.costs import Cost, input_shape, size
from widthlab.errors import WidthlabError
from widthlab.experiments.shared.base import (
    Classifiers,
    Grid,
    Inputs,
    Label,
    Measured,
    Request,
    Trained,
    network_of,
    slug_of,
)
from widthlab.experiments.shared.families import CALIBRATION, measurable, misfit
from widthlab.specs import (
    BASE_WIDTH,
    Checkpoint,
    Classifier,
    Count,
    DataSet,
    Digits,
    Network,
    Positive,
    ResNet20,
    Seed,
    Spec,
    Training,
    Unit,
    nearest,
)

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from widthlab.claims import Claim
    from widthlab.report.figures import Figure

Array = NDArray[np.float64]

TITLE = "Drift of the neural tangent kernel"
QUESTION = "Does a wider network's tangent kernel move less while it learns, and how much less?"
METHOD = (
    "At every width and seed a network is trained, and at log-spaced snapshots the empirical NTK "
    "of held-out inputs is measured, each parameter weighted by its learning rate's factor, which "
    "is not 1 in muP only (batch normalisation in evaluation mode, with statistics of "
    "the training samples at that snapshot). The drift is |Θₜ − Θ₀|/|Θ₀| in the Frobenius norm. "
    "Exponents are fitted over widths, with intervals from resampling seeds; a run that diverged "
    "is counted and shown, and enters no fit."
)
LEADING = 0.1
"""Largest L/N at which the leading order in 1/N is judged by an exponent."""
WIDE, MIN_WIDTHS = 8, 3
"""muP is the standard parameterisation at its base width, so its limit is judged over at least
MIN_WIDTHS widths of at least WIDE times that."""


class Section(Spec):
    """Grid of the NTK-drift experiment."""

    models: Classifiers
    """Architectures to train, by the label that figures show."""
    width: Annotated[Grid, Unit("neurons")]
    """Widths N to sweep (channels of the first stage for resnet20)."""
    depth: Annotated[Count, Unit("layers")] = 3
    """Depth L of perceptrons; resnet20 has its own."""
    seeds: Annotated[Count, Unit("networks")] = 4
    """Networks trained at every width, from different initialisations."""
    training: Training = Training()
    """How every network is trained."""
    learning_rates: Annotated[dict[Label, Positive], Unit("1")] = Field(default={})
    """Learning rates of models that need their own, by label; others take that of training."""
    probe: Annotated[Count, Unit("samples")] = 64
    """Held-out inputs on which the kernel is measured."""
    kernel: Literal["trace", "full"] = "trace"
    """Kernel summed over outputs (n × n), or full (n·C × n·C)."""
    data: DataSet = Digits()
    """What the networks learn."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """Refuse what could only fail in its jobs."""
        for label in self.learning_rates:
            if label not in self.models:
                known = nearest(label, self.models)
                raise ValueError(f"learning_rates: no model {label!r}; {known}")
        _, most = self.data.most()
        if self.probe > most:
            raise ValueError(f"probe: {self.probe} is too many, data has {most:g} test samples")
        for label, architecture in self.models.items():
            problem = misfit(architecture, self.data, self.training_of(label))
            if problem:
                raise ValueError(f"models.{label}: {problem}")
        return self

    def training_of(self, label: str) -> Training:
        """Return how a model is trained."""
        rate = self.learning_rates.get(label, self.training.learning_rate)
        return self.training.model_copy(update={"learning_rate": rate})


class Cell(Spec):
    """One trained network."""

    architecture: Classifier
    width: Count
    depth: Count
    seed: Seed
    probe: Count
    kernel: Literal["trace", "full"]


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell, and one checkpoint, for every architecture, width and seed."""
    requests = []
    for label, architecture in section.models.items():
        for width in section.width:
            network = network_of(architecture, width, section.depth)
            for number in range(section.seeds):
                cell = Cell(
                    architecture=architecture,
                    width=width,
                    depth=network.depth,
                    seed=number,
                    probe=section.probe,
                    kernel=section.kernel,
                )
                checkpoint = Checkpoint(
                    network=network,
                    data=section.data,
                    training=section.training_of(label),
                    seed=number,
                    study_seed=seed,
                )
                cost = _cost(section, network)
                slug = slug_of(network, f"s{number}")
                requests.append(Request(cell, label, slug, section.data, (checkpoint,), cost))
    return requests


def _cost(section: Section, network: Network) -> Cost:
    of = size(network, input_shape(section.data))
    rows = section.probe * (1 if section.kernel == "trace" else 10)
    outputs, snapshots = 10, section.training.snapshots
    # Backward passes, and Gram matrices of every layer over all pairs of samples and outputs.
    each = section.probe * outputs * of.multiplications * 4
    each += (section.probe * outputs) ** 2 * of.activations * 2
    kernels = 8.0 * rows**2 * snapshots
    memory = 1e9 + 8 * of.parameters + kernels
    return Cost(2.0 * each * snapshots, memory=memory, disk=kernels, files=40)


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return the kernel at every snapshot with its drift, alignment and spectrum, and learning."""
    import torch
    import xarray as xr

    from widthlab.checkpoints.files import load_history
    from widthlab.statistics.ntk import (
        eigenvalues,
        empirical_ntk,
        kernel_alignment,
        relative_drift,
    )

    (trained,) = inputs.checkpoints
    history = load_history(trained.folder)
    x = inputs.data.test(inputs.device)[0][: cell.probe]
    if len(x) < cell.probe:
        raise WidthlabError(
            f"probe: {cell.probe} inputs are asked for, but the data set has {len(x)} test samples"
        )
    seen = min(CALIBRATION, len(inputs.data.train_y))
    rates: dict[str, float] = {}
    kernels: list[torch.Tensor] = []
    for step in history["step"]:
        model = measurable(trained, step, inputs)
        if trained.specification.training.optimiser == "sgd":
            rates = model.learning_rate_factors("sgd")
        kernels.append(empirical_ntk(model, x, outputs=cell.kernel, rates=rates))
    rows = cell.probe * (1 if cell.kernel == "trace" else inputs.data.outputs)
    dims = ("snapshot", "row", "column")
    variables = {
        # Reshaped, since a run that diverged before its first step has no snapshot.
        "ntk": (
            dims,
            np.array([k.numpy() for k in kernels]).reshape(len(kernels), rows, rows),
            "empirical NTK of held-out inputs",
        ),
        "eigenvalue": (
            ("snapshot", "index"),
            np.array([eigenvalues(k).numpy() for k in kernels]).reshape(len(kernels), rows),
            "eigenvalues of the NTK, in descending order",
        ),
        "drift": (
            "snapshot",
            np.array([relative_drift(k, kernels[0]) for k in kernels]),
            "|Θₜ − Θ₀| / |Θ₀|, Frobenius norms",
        ),
        "alignment": (
            "snapshot",
            np.array([kernel_alignment(k, kernels[0]) for k in kernels]),
            "⟨Θₜ, Θ₀⟩ / (|Θₜ||Θ₀|)",
        ),
        **{
            name: ("snapshot", np.array(history[name], dtype=np.float64), text)
            for name, text in LEARNING.items()
        },
    }
    return xr.Dataset(
        {
            name: (dim, values, {"units": "1", "description": text})
            for name, (dim, values, text) in variables.items()
        },
        coords={"step": ("snapshot", np.array(history["step"]), {"units": "steps"})},
        attrs={
            "kernel": cell.kernel,
            "weights": "learning-rate factors of the parameterisation" if rates else "none",
            "mode": "evaluation",
            "batch_normalisation": f"statistics of {seen} training samples, at every snapshot",
            "status": trained.status,
            **_outcome(trained),
        },
    )


LEARNING = {
    "train_loss": "mean loss of the training samples",
    "test_loss": "mean loss of the test samples",
    "train_accuracy": "share of training samples classified correctly",
    "test_accuracy": "share of test samples classified correctly",
}


def _outcome(trained: Trained) -> dict[str, object]:
    training = trained.specification.training
    return {"optimiser": training.optimiser, "learning_rate": training.learning_rate}


# ── the sweep ───────────────────────────────────────────────────────────────────────────────


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return drift, spectra and learning by model, width, seed and snapshot, and claims.

    A run that diverged has NaN from its divergence on, and `diverged` is True.
    """
    import xarray as xr

    from widthlab.checkpoints.schedule import snapshot_steps
    from widthlab.claims import to_json

    labels, widths = list(section.models), section.width
    steps = snapshot_steps(section.training.steps, section.training.snapshots)
    shape = (len(labels), len(widths), section.seeds)
    texts = {
        "drift": "|Θₜ − Θ₀| / |Θ₀|, Frobenius norms",
        "alignment": "⟨Θₜ, Θ₀⟩ / (|Θₜ||Θ₀|)",
        **LEARNING,
    }
    found = {name: np.full((*shape, len(steps)), np.nan) for name in texts}
    rows = max((one.statistics.sizes["index"] for one in measured), default=0)
    spectrum = np.full((*shape, 2, rows), np.nan)
    there, diverged = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for one in measured:
        at = labels.index(one.label), widths.index(one.cell.width), one.cell.seed
        statistics = one.statistics.drop_vars("ntk").load()
        taken = np.searchsorted(steps, statistics["step"].to_numpy())
        for name in texts:
            found[name][at][taken] = statistics[name].to_numpy()
        diverged[at] = statistics.attrs["status"] == "diverged"
        if len(taken):
            spectrum[at][0] = statistics["eigenvalue"].isel(snapshot=0).to_numpy()
        if not diverged[at]:
            spectrum[at][1] = statistics["eigenvalue"].isel(snapshot=-1).to_numpy()
        there[at] = True
    grid = ("model", "width", "seed")
    dataset = xr.Dataset(
        {
            **{
                name: ((*grid, "step"), found[name], {"units": "1", "description": text})
                for name, text in texts.items()
            },
            "eigenvalue": (
                (*grid, "when", "index"),
                spectrum,
                {"units": "1", "description": "eigenvalues of the NTK, in descending order"},
            ),
            "predicted_exponent": (
                "model",
                np.array([_exponent(a, section.training) for a in section.models.values()]),
                {"units": "1", "description": "predicted exponent of the drift in N, or NaN"},
            ),
            "present": (grid, there, {"description": "whether the cell is finished"}),
            "diverged": (grid, diverged, {"description": "whether training diverged"}),
        },
        coords={
            "model": labels,
            "width": widths,
            "seed": np.arange(section.seeds),
            "step": np.array(steps),
            "when": ["start", "end"],
            "index": np.arange(1, rows + 1),
        },
        attrs={"experiment": "ntk_drift", "probe": section.probe, "kernel": section.kernel},
    )
    dataset.attrs["claims"] = to_json(claims(section, dataset))
    return dataset


# ── claims ──────────────────────────────────────────────────────────────────────────────────


def claims(section: Section, dataset: xr.Dataset) -> list[Claim]:
    """Judge, by model, the exponent where theory has one, else only that the drift falls."""
    from widthlab.experiments.shared.verdicts import exponent_claim, sign_claim
    from widthlab.scaling import fit_power_law

    made: list[Claim] = []
    final = dataset["drift"].isel(step=-1)
    for label, architecture in section.models.items():
        there = dataset["present"].sel(model=label).to_numpy()
        if not there.any():
            continue
        drift = final.sel(model=label).to_numpy()
        depth = network_of(architecture, section.width[0], section.depth).depth
        known = predicted_exponent(architecture, section.training)
        # A law of leading order is judged where it leads; an open measurement everywhere.
        every = range(len(section.width))
        judged = [i for i in every if not known or depth <= LEADING * section.width[i]]
        caveat = ""
        if getattr(architecture, "parameterisation", "") == "mup":
            wide = [i for i in judged if section.width[i] >= WIDE * BASE_WIDTH]
            if len(wide) >= MIN_WIDTHS:
                judged = wide
            else:
                caveat = (
                    f"fewer than {MIN_WIDTHS} widths are {WIDE} times the base width {BASE_WIDTH} "
                    "or more, where muP's own limit begins to show"
                )
        widths = [section.width[i] for i in judged]
        law = fit_power_law(widths, [drift[i][there[i]] for i in judged], seed=0)
        if known is None:
            made.append(
                sign_claim(
                    f"ntk_drift.{label}.falls",
                    f"{label}: the tangent kernel drifts less in wider networks (its exponent is "
                    "an open measurement)",
                    "theory of the lazy limit; no exponent is predicted for this parameterisation",
                    law,
                    -1,
                )
            )
        else:
            exponent, rivals, words, source = known
            made.append(
                exponent_claim(
                    f"ntk_drift.{label}.exponent",
                    f"{label}: the relative drift of the tangent kernel {words}, where "
                    f"L/N ≤ {LEADING:g}",
                    source,
                    law,
                    exponent,
                    rivals,
                    caveat=caveat,
                )
            )
    return made


def _exponent(architecture: Classifier, training: Training) -> float:
    known = predicted_exponent(architecture, training)
    return np.nan if known is None else known[0]


Prediction = tuple[float, tuple[float, ...], str, str]
"""An exponent, its rivals, what it says in words, and its source."""


SMOOTH = ("linear", "tanh", "erf", "gelu", "silu")
"""Activations for which the lazy limit's rate is proved; kinks may change it."""


def predicted_exponent(architecture: Classifier, training: Training) -> Prediction | None:
    """Return the predicted exponent of the drift in N, or None where theory has none.

    Theory is of gradient descent: not of Adam, nor of weight decay or clipping, which move the
    kernel at any width.
    """
    if isinstance(architecture, ResNet20) or architecture.normalisation == "batch":
        return None
    if training.optimiser != "sgd" or training.weight_decay or training.clip_norm is not None:
        return None
    if architecture.parameterisation == "ntk" and architecture.activation in SMOOTH:
        source = "Jacot et al. (2018); Huang & Yau (2020); Dyer & Gur-Ari (2020): Θₜ − Θ₀ = O(1/N)"
        return -1.0, (-0.5, 0.0), "falls as 1/N", source
    if architecture.parameterisation == "mup":
        source = "Yang & Hu (2021): muP keeps learning features at any width"
        return 0.0, (-0.5, -1.0), "does not depend on the width", source
    return None


# ── figures ─────────────────────────────────────────────────────────────────────────────────


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return the drift against width, along training, spectra, and learning by width."""
    return [
        _width_figure(dataset),
        _training_figure(dataset),
        _spectrum_figure(dataset),
        _learning_figure(dataset),
    ]


def _counted(dataset: xr.Dataset) -> str:
    """Say how many runs there are, and how many of them stayed finite."""
    there, lost = int(dataset["present"].sum()), int(dataset["diverged"].sum())
    asked = dataset["present"].size
    missing = f", {asked - there} of {asked} cells are missing" if there < asked else ""
    return f"{there - lost} of {there} runs are finite to the end{missing}"


def _mean_table(dataset: xr.Dataset, name: str) -> pd.DataFrame:
    """Return means over seeds with 95 % intervals, by model, width and step."""
    import pandas as pd

    from widthlab.scaling import mean_interval

    rows = []
    data = dataset[name]
    for label in dataset["model"].to_numpy():
        for width in dataset["width"].to_numpy():
            for step in dataset["step"].to_numpy():
                values = data.sel(model=label, width=width, step=step).to_numpy()
                interval = mean_interval(values)
                rows.append(
                    {
                        "model": str(label),
                        "width": int(width),
                        "step": int(step),
                        name: interval.value,
                        "low": interval.low,
                        "high": interval.high,
                        "finite": interval.finite,
                    }
                )
    return pd.DataFrame(rows)


def _width_figure(dataset: xr.Dataset) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas
    from widthlab.scaling import fit_power_law

    data = _mean_table(dataset, "drift")
    last = data[data["step"] == data["step"].max()]
    with canvas() as page:
        (axes,) = page.axes
        plots.loglog(
            axes,
            last,
            x="width",
            y="drift",
            hue="model",
            kind="category",
            low="low",
            high="high",
            line=False,
            labels=("width N", f"relative drift of the NTK after {last['step'].max()} steps"),
        )
        widths = dataset["width"].to_numpy().astype(float)
        named: set[str] = set()
        for label in dataset["model"].to_numpy():
            own = dataset.sel(model=label)
            law = fit_power_law(widths, list(own["drift"].isel(step=-1).to_numpy()), seed=0)
            if not np.isfinite(law.exponent):
                continue
            lines = {"fitted power law": law.exponent}
            if np.isfinite(own["predicted_exponent"]):
                lines["predicted slope"] = float(own["predicted_exponent"])
            # Both go through the fit at the geometric middle of the widths.
            middle = np.exp(np.log(widths).mean())
            for name, exponent in lines.items():
                line = law.prefactor * middle**law.exponent * (widths / middle) ** exponent
                style = "dotted" if name == "fitted power law" else "dashed"
                label_once = None if name in named else name
                plots.theory(axes, widths, line, label_once, style=style)  # type: ignore[arg-type]
                named.add(name)
        page.legend()
    return page.finish(
        "ntk-drift-width",
        "Drift of the tangent kernel against width",
        f"Relative drift of the NTK on {dataset.attrs['probe']} held-out inputs at the end of "
        f"training; {_counted(dataset)}. Points: mean over seeds. Bars: 95 % t intervals. "
        "Dotted: fitted power laws, whose exponents and intervals stand with the claims. Dashed: "
        "the predicted slope, where there is one.",
        "The drift of the tangent kernel against width on two logarithmic axes, for each "
        "architecture, with the fitted and the predicted power law.",
        last,
    )


def _training_figure(dataset: xr.Dataset) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    data = _mean_table(dataset, "drift")
    names = [str(label) for label in dataset["model"].to_numpy()]
    with canvas(ncols=len(names), sharey=True) as page:
        for axes, label in zip(page.axes, names, strict=True):
            plots.series(
                axes,
                data[data["model"] == label],
                x="step",
                y="drift",
                hue="width",
                low="low",
                high="high",
                scales=("log", "log"),
                labels=("training step", "relative drift of the NTK"),
            )
        page.letter(*names)
        page.legend("width N")
    return page.finish(
        "ntk-drift-training",
        "Drift of the tangent kernel along training",
        f"Relative drift of the NTK at every snapshot; {_counted(dataset)}. Lines: mean over "
        "seeds. Bands: 95 % t intervals.",
        "The drift of the tangent kernel against the training step, a line for each width.",
        data,
    )


def _spectrum_figure(dataset: xr.Dataset) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    mean = dataset["eigenvalue"].mean("seed", skipna=True)
    scale = mean.sel(when="start").isel(index=0, drop=True)
    data = (mean / scale).rename("eigenvalue").to_dataframe().reset_index().dropna()
    names = [str(label) for label in dataset["model"].to_numpy()]
    with canvas(ncols=2, nrows=len(names)) as page:
        for number, label in enumerate(names):
            for column, when in enumerate(("start", "end")):
                own = data[(data["model"] == label) & (data["when"] == when)]
                plots.series(
                    page.axes[2 * number + column],
                    own,
                    x="index",
                    y="eigenvalue",
                    hue="width",
                    scales=("log", "log"),
                    labels=("index of the eigenvalue", "eigenvalue / largest at the start"),
                    markers=False,
                )
        page.letter(
            *(f"{label}, {when} of training" for label in names for when in ("start", "end"))
        )
        page.legend("width N")
    return page.finish(
        "ntk-drift-spectrum",
        "Spectrum of the tangent kernel before and after training",
        f"Eigenvalues of the NTK on {dataset.attrs['probe']} held-out inputs, mean over seeds, "
        f"over the largest at the start; {_counted(dataset)}.",
        "Sorted eigenvalues of the tangent kernel at the start and at the end of training, a line "
        "for each width.",
        data,
    )


def _learning_figure(dataset: xr.Dataset) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    loss, accuracy = _mean_table(dataset, "test_loss"), _mean_table(dataset, "test_accuracy")
    names = [str(label) for label in dataset["model"].to_numpy()]
    with canvas(ncols=2, nrows=len(names)) as page:
        for number, label in enumerate(names):
            left, right = page.axes[2 * number : 2 * number + 2]
            for axes, data, name, text in (
                (left, loss, "test_loss", "test loss"),
                (right, accuracy, "test_accuracy", "test accuracy"),
            ):
                plots.series(
                    axes,
                    data[(data["model"] == label) & (data["step"] > 0)],
                    x="step",
                    y=name,
                    hue="width",
                    low="low",
                    high="high",
                    scales=("log", "linear"),
                    labels=("training step", text),
                )
        page.letter(*(f"{label}, {what}" for label in names for what in ("loss", "accuracy")))
        page.legend("width N")
    table = loss.merge(accuracy, on=["model", "width", "step"], suffixes=("_loss", "_accuracy"))
    return page.finish(
        "ntk-drift-learning",
        "Learning by width",
        f"Loss and accuracy of test samples along training; {_counted(dataset)}. Lines: mean over "
        "seeds. Bands: 95 % t intervals. Batch normalisation has its running averages here.",
        "Test loss and test accuracy against the training step, a line for each width.",
        table,
    )
