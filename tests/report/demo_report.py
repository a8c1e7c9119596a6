"""A small but real report: ReLU networks sampled in numpy, drawn and described in full.

Also a script: `python tests/report/demo_report.py OUT.html [ROWS]` writes the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from widthlab.claims import Claim
from widthlab.report import plots
from widthlab.report.figures import Figure, canvas
from widthlab.report.page import CellRow, Provenance, Section, render
from widthlab.report.ticks import at_values

WIDTHS = (8, 16, 32, 64, 128)
DEPTH = 10
DRAWS = 400


def relu_log_q(width: int, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Sample log q of every layer of deep ReLU networks at criticality, (draws, DEPTH)."""
    q = np.ones(draws)
    logs = np.empty((draws, DEPTH))
    for layer in range(DEPTH):
        z = generator.standard_normal((draws, width)) * np.sqrt(2 * q)[:, None]
        q = (np.maximum(z, 0) ** 2).mean(axis=1)
        with np.errstate(divide="ignore"):
            logs[:, layer] = np.log(q)
    return logs


def variance_table() -> pd.DataFrame:
    """Mean and variance of log q with 95 % intervals, for each width and layer."""
    generator = np.random.default_rng(7)
    rows = []
    for width in WIDTHS:
        logs = relu_log_q(width, DRAWS, generator)
        for layer in range(DEPTH):
            column = logs[:, layer]
            alive = column[np.isfinite(column)]
            variance = alive.var(ddof=1)
            kurtosis = ((alive - alive.mean()) ** 4).mean() / variance**2
            error = variance * np.sqrt((kurtosis - 1) / alive.size)
            half = 1.96 * np.sqrt(variance / alive.size)
            rows.append(
                {
                    "width": width,
                    "layer": layer + 1,
                    "finite": alive.size,
                    "mean": alive.mean(),
                    "mean_low": alive.mean() - half,
                    "mean_high": alive.mean() + half,
                    "var": variance,
                    "var_low": variance - 1.96 * error,
                    "var_high": variance + 1.96 * error,
                }
            )
    return pd.DataFrame(rows)


def variance_figures() -> tuple[list[Figure], pd.DataFrame]:
    """Return the scaling plot and the layer plot, with their table."""
    data = variance_table()
    last = data[data["layer"] == DEPTH]
    finite = f"{int(data[data['layer'] == DEPTH]['finite'].sum())} of {DRAWS * len(WIDTHS)}"
    widths = np.geomspace(7, 140, 50)
    with canvas() as page:
        (axes,) = page.axes
        plots.loglog(
            axes,
            last,
            x="width",
            y="var",
            low="var_low",
            high="var_high",
            line=False,
            labels=("width N", f"Var log q at layer {DEPTH}"),
            label="measured",
        )
        plots.theory(axes, widths, 5 * DEPTH / widths, "theory 5L/N")
        plots.slope(axes, -1, (20, 4.2), "slope −1")
        page.legend()
    scaling = page.finish(
        "variance-scaling",
        "Spread of the signal variance against width",
        f"Variance of log q at layer {DEPTH} of ReLU networks at criticality; {finite} draws are "
        "finite (the others died). Bars: 95 % intervals over draws. Dashed: 5L/N.",
        "The variance of log q falls as one over the width along the theory line, above it at "
        "the smallest widths.",
        last,
    )
    with canvas(ncols=2) as page:
        left, right = page.axes
        plots.layers(
            left,
            data,
            y="mean",
            low="mean_low",
            high="mean_high",
            labels=("layer l", "mean of log q"),
        )
        plots.layers(
            right,
            data,
            y="var",
            low="var_low",
            high="var_high",
            labels=("layer l", "Var log q"),
            scales=("linear", "log"),
        )
        layer = np.arange(1, DEPTH + 1)
        for width in WIDTHS:
            plots.theory(left, layer, -2.5 * layer / width, "theory" if width == 8 else None)
            plots.theory(right, layer, 5 * layer / width, None)
        page.letter("Typical value", "Spread")
        page.legend("width N")
    by_layer = page.finish(
        "variance-layers",
        "Signal variance along the layers",
        f"Mean and variance of log q for five widths; {DRAWS} draws each, of which dead ones are "
        "left out. Bands: 95 % intervals. Dashed: −5l/(2N) and 5l/N.",
        "Both the drift of the mean and the variance grow linearly with the layer, faster for "
        "narrow networks.",
        data,
    )
    return [scaling, by_layer], data


def kernel_figures() -> list[Figure]:
    """Return a spectrum by width with learning curves, and a bar chart with categories."""
    generator = np.random.default_rng(11)
    inputs = generator.standard_normal((64, 16))
    rows = []
    for width in (32, 128, 512):
        weights = generator.standard_normal((width, 16)) / 4
        hidden = np.maximum(inputs @ weights.T, 0) * np.sqrt(2 / width)
        gates = (inputs @ weights.T > 0) * np.sqrt(2 / width)
        kernel = hidden @ hidden.T + (gates @ gates.T) * (inputs @ inputs.T) / 16
        values = np.linalg.eigvalsh(kernel)[::-1]
        rows += [{"width": width, "index": i + 1, "value": v} for i, v in enumerate(values)]
    spectrum = pd.DataFrame(rows)
    step = np.unique(np.geomspace(1, 1000, 24).astype(int))
    curves = pd.concat(
        pd.DataFrame({"width": n, "step": step, "loss": (0.04 + np.exp(-step * n / 2e4)) * 2.3})
        for n in (32, 128, 512)
    )
    with canvas(ncols=2) as page:
        plots.series(
            page.axes[0],
            spectrum,
            x="index",
            y="value",
            hue="width",
            markers=False,
            scales=("log", "log"),
            labels=("index of the eigenvalue", "eigenvalue of Θ"),
        )
        plots.series(
            page.axes[1],
            curves,
            x="step",
            y="loss",
            hue="width",
            markers=False,
            scales=("log", "linear"),
            labels=("step", "training loss"),
        )
        page.letter("Spectrum at the start", "Learning curves")
        page.legend("width N")
    both = page.finish(
        "kernel-spectrum",
        "Kernel and learning",
        "One draw of 1 is finite. No bands.",
        "Eigenvalues fall over three decades at all widths; wide networks learn faster.",
        spectrum,
    )
    drift = pd.DataFrame(
        {
            "activation": ["relu", "tanh", "erf", "gelu", "silu", "linear"],
            "drift": [0.31, 0.18, 0.2, 0.27, 0.24, 0.05],
            "low": [0.28, 0.16, 0.17, 0.2, 0.21, 0.04],
            "high": [0.35, 0.2, 0.24, 0.33, 0.28, 0.06],
        }
    )
    trend = pd.DataFrame(
        {
            "depth": [2, 4, 8] * 3,
            "value": [0.1, 0.2, 0.4, 0.07, 0.15, 0.32, np.nan, 0.09, 0.2],
            "net": ["mlp"] * 3 + ["residual_mlp"] * 3 + ["resnet20"] * 3,
        }
    )
    with canvas(ncols=2) as page:
        plots.bars(
            page.axes[0],
            drift,
            x="activation",
            y="drift",
            low="low",
            high="high",
            labels=("activation", "relative drift of Θ"),
        )
        plots.series(
            page.axes[1],
            trend,
            x="depth",
            y="value",
            hue="net",
            kind="category",
            labels=("depth L", "relative drift of Θ"),
        )
        at_values(page.axes[1].xaxis, trend["depth"])
        page.letter("By activation", "By depth")
        page.legend()
    bars = page.finish(
        "kernel-drift",
        "Drift of the kernel",
        "8 of 9 points are finite. Whiskers: made up.",
        "ReLU drifts most, linear least; drift grows with depth.",
        trend,
    )
    return [both, bars]


def claims(data: pd.DataFrame) -> list[Claim]:
    """Return one claim of each verdict."""
    row = data[(data["layer"] == DEPTH) & (data["width"] == 128)].iloc[0]
    return [
        Claim(
            id="variance-spread",
            experiment="variance",
            statement="The variance of log q grows by 5/N a layer in a critical ReLU network",
            source="Hanin & Nica 2019, arXiv:1812.05994",
            predicted=5 * DEPTH / 128,
            measured=float(row["var"]),
            low=float(row["var_low"]),
            high=float(row["var_high"]),
            verdict="holds",
            reason="the prediction lies inside the 95 % interval over 400 draws",
        ),
        Claim(
            id="variance-typical",
            experiment="variance",
            statement="The typical value does not drift: E log q stays 0",
            source="a deliberately wrong statement",
            predicted=0.0,
            measured=float(row["mean"]),
            low=float(row["mean_low"]),
            high=float(row["mean_high"]),
            verdict="fails",
            reason="0 is far above the interval; −5L/(2N) is inside",
        ),
        Claim(
            id="kernel-exponent",
            experiment="ntk_drift",
            statement="The kernel's drift in training falls as 1/N",
            source="Dyer & Gur-Ari 2020",
            predicted=-1.0,
            measured=None,
            low=None,
            high=None,
            verdict="undecided",
            reason="two widths are there, and a fitted exponent needs three",
        ),
    ]


def rows(total: int) -> list[CellRow]:
    """Return results in all four states, `total` of them."""
    made = []
    for i in range(total):
        status = "done"
        if i % 29 == 3:
            status = "failed"
        elif i % 29 == 11:
            status = "missing"
        elif i % 29 == 17:
            status = "diverged"
        width, seed = WIDTHS[i % len(WIDTHS)], i // len(WIDTHS)
        label = f"mlp-digits-w{width}-s{seed}"
        there = status in ("done", "diverged")
        made.append(
            CellRow(
                experiment="variance" if i % 2 else "ntk_drift",
                label=label,
                address=f"{label}-{(i * 2654435761) % 2**32:08x}",
                status=status,
                detail={
                    "failed": "RuntimeError: out of memory at layer 3; see logs/extract.log",
                    "diverged": "loss was not finite at step 118",
                }.get(status, ""),
                seconds=1.7 * (i % 90) + 0.31 if there else None,
                device="cpu" if there else None,
                kind="checkpoint" if i % 3 else "cell",
            )
        )
    return made


def demo(total: int = 34, title: str = "Digits at five widths") -> str:
    """Return the whole page."""
    first, data = variance_figures()
    tested = claims(data)
    sections = [
        Section(
            experiment="variance",
            title="Signal variance at initialisation",
            question="How far does the signal of one random network stray from the "
            "infinite-width law, and does the spread grow as depth over width?",
            method=f"ReLU multilayer perceptrons at criticality, {DEPTH} layers, {DRAWS} random "
            "draws at each of five widths; q is the mean square of the activations.",
            claims=tested[:2],
            figures=first,
        ),
        Section(
            experiment="ntk_drift",
            title="Drift of the neural tangent kernel",
            question="How much does the kernel move in training, and how does that depend on "
            "width?",
            method="One draw of a two-layer network at three widths on 64 random inputs.",
            claims=tested[2:],
            figures=kernel_figures(),
            note="3 of 12 cells are missing; the exponent was not fitted.",
        ),
        Section(
            experiment="gradient_correlation",
            title="Correlation of gradients",
            question="Are the gradients of two neurons independent?",
            method="Not measured yet.",
            note="no results yet: 12 of 12 cells missing",
        ),
    ]
    provenance = Provenance(
        study=title,
        digest="3fa9c1d27be04d5e",
        git_commit="6038f4d0a7c1",
        git_dirty=True,
        versions={"python": "3.11.9", "torch": "2.14.1", "widthlab": "0.1.0", "numpy": "2.4.6"},
        devices=("cpu (Intel Xeon, 2 cores)",),
        wall_seconds=754.2,
        command="rm -r reports/digits && snakemake --cores 2 reports/digits/index.html",
        results="results",
        config="name: digits\ndevice: cpu\nvariance:\n  widths: [8, 16, 32]\n  depth: 10\n",
    )
    return render(title, sections, rows(total), provenance)


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 34
    Path(sys.argv[1]).write_text(demo(count), encoding="utf-8")
