"""What expansion does by width and by point, bounds against gains, and how often steps align."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from widthlab.experiments.shared.networks import by_width, counted, families_of, over_seeds
from widthlab.report import plots, ticks
from widthlab.report.figures import Figure, canvas
from widthlab.report.style import INK

if TYPE_CHECKING:
    import xarray as xr


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return the figures, or none where no network was expanded."""
    if "change" not in dataset:
        return []
    return [_fresh(dataset), _bounds(dataset), _points(dataset), _aligned(dataset)]


def _relative(dataset: xr.Dataset) -> xr.DataArray:
    """Return the change of the loss on fresh samples over the loss before, in percent."""
    return 100 * dataset["change"] / dataset["loss"].sel(state="old", part="fresh")


def _by_block(dataset: xr.Dataset, values: xr.DataArray, name: str) -> pd.DataFrame:
    """Return means over seeds with intervals of values (network, block), by family and width."""
    blocks = [str(block) for block in dataset["block"].to_numpy()]
    tables = [over_seeds(dataset, values.sel(block=b), name).assign(block=b) for b in blocks]
    return pd.concat(tables, ignore_index=True)


def _samples(dataset: xr.Dataset) -> str:
    of = dataset.attrs
    return (
        f"M = {of['step_samples']}, K = {of['held_out_samples']}, "
        f"{dataset['fresh_samples'].max():.0f} fresh samples; {counted(dataset)}"
    )


def _fresh(dataset: xr.Dataset) -> Figure:
    """Draw the change on fresh samples, and the share of expansions that help, by width."""
    inside = ["layer", "draw"]
    change = _by_block(dataset, _relative(dataset).mean(inside), "change")
    helped = (dataset["change"] < 0).where(dataset["change"].notnull()).mean(inside)
    share = _within(_by_block(dataset, helped, "share"))
    names = families_of(dataset)
    with canvas(ncols=2, nrows=len(names)) as page:
        for number, label in enumerate(names):
            for axes, data, name, text in zip(
                page.axes[2 * number : 2 * number + 2],
                (change, share),
                ("change", "share"),
                ("change of the fresh loss [%]", "share of expansions that help"),
                strict=True,
            ):
                own = data[data["family"] == label]
                plots.series(
                    axes,
                    own,
                    x="width",
                    y=name,
                    hue="block",
                    kind="category",
                    low="low",
                    high="high",
                    spread="bars",
                    scales=("log", "linear"),
                    labels=("width N", text),
                )
                if len(own):
                    ticks.at_values(axes.xaxis, own["width"])
                    axes.axhline(0.0 if name == "change" else 0.5, color=INK, linestyle="dashed")
        page.letter(*(f"{label}, {what}" for label in names for what in ("change", "share")))
        page.legend()
    table = change.merge(share, on=["family", "block", "width"], suffixes=("", "_share"))
    return page.finish(
        "expansion-fresh",
        "What expansion does to the loss of fresh samples",
        "Change of the clipped loss on fresh samples from f_old to f_new, in percent, and the "
        f"share of insertion points and draws at which it falls; {_samples(dataset)}. Points: mean "
        "over networks, each the mean over its points and draws. Bars: 95 % t intervals over "
        "networks. Dashed: no change, and one half.",
        "The change of the loss on fresh samples by an inserted block, and how often it is an "
        "improvement, against width for each block.",
        table,
    )


def _within(data: pd.DataFrame) -> pd.DataFrame:
    """Cut the intervals of shares where no share can be."""
    return data.assign(low=data["low"].clip(0, 1), high=data["high"].clip(0, 1))


def _names(dataset: xr.Dataset) -> str:
    """Say which modules the insertion points of each family are."""
    parts = []
    for family in families_of(dataset):
        rows = dataset["point"].to_numpy()[dataset["family"].to_numpy() == family]
        names = [name for name in max(rows.tolist(), key=lambda row: sum(map(bool, row))) if name]
        parts.append(f"{family}: {', '.join(names)}")
    return "; ".join(parts)


def _bounds(dataset: xr.Dataset) -> Figure:
    """Draw what was gained against what the uniform bounds allow for."""
    slack = 2 * (dataset["epsilon_train"] + dataset["epsilon_test"])
    gain = dataset["delta_r"] + dataset["delta_erm"]
    parts: dict[str, xr.DataArray] = {
        "|Δ_R + Δ_ERM|": abs(gain),
        "|needed|": abs(dataset["needed"]),
        "2(ε_M + ε_K), paired": slack.sel(bound="paired", drop=True),
        "2(ε_M + ε_K), generic": slack.sel(bound="generic", drop=True),
    }
    rows = [_medians(dataset, values).assign(quantity=name) for name, values in parts.items()]
    data = pd.concat(rows, ignore_index=True)
    names = families_of(dataset)
    blocks = [str(block) for block in dataset["block"].to_numpy()]
    with canvas(ncols=len(blocks), nrows=len(names), sharey=True) as page:
        for axes, (label, block) in zip(
            page.axes, ((label, block) for label in names for block in blocks), strict=True
        ):
            own = data[(data["family"] == label) & (data["block"] == block)]
            plots.loglog(
                axes,
                own,
                x="width",
                y="value",
                hue="quantity",
                kind="category",
                order=list(parts),
                low="low",
                high="high",
                labels=("width N", "loss"),
            )
            cap = float(dataset["cap"].where(dataset["family"] == label).max())
            if np.isfinite(cap):
                axes.axhline(cap, color=INK, linestyle="dashed", label="cap of the loss")
        page.letter(*(f"{label}, {block}" for label in names for block in blocks))
        page.legend()
    return page.finish(
        "expansion-bounds",
        "Gains against uniform bounds",
        "Size of the gain Δ_R + Δ_ERM, of the slack that the inequality needed (the growth of the "
        "train–test gap), and the slack 2(ε_M + ε_K) that the generic and the paired bound give; "
        f"{_samples(dataset)}. Points: median over networks, points and draws. Bars: quartiles. "
        "Dashed: where losses are clipped; a bound above it says nothing, and the paired one says "
        "nothing already above the most that such a block can change a loss by. Where the paired "
        "bound is hidden, it is that of the generic one: the complexity of the class is most of "
        "both.",
        "Gains, the slack that was needed, and both uniform bounds against width on logarithmic "
        "axes, for each family and block.",
        data,
    )


def _medians(dataset: xr.Dataset, values: xr.DataArray) -> pd.DataFrame:
    """Return median and quartiles of the finite values by family, block and width."""
    rows = []
    for family in families_of(dataset):
        for block in dataset["block"].to_numpy():
            own = values.sel(block=block).to_numpy()
            for width, group in zip(*by_width(dataset, family, own), strict=True):
                finite = group[np.isfinite(group)]
                if len(finite):
                    low, middle, high = np.quantile(finite, [0.25, 0.5, 0.75])
                    rows.append([family, str(block), width, middle, low, high, len(finite)])
    columns = ["family", "block", "width", "value", "low", "high", "finite"]
    return pd.DataFrame(rows, columns=columns)


def _points(dataset: xr.Dataset) -> Figure:
    """Draw the gain on the samples of the step, and that on fresh ones, along the network."""
    loss = dataset["loss"].sel(state="old")
    gains = {
        "seen": 100 * (dataset["delta_r"] + dataset["delta_erm"]) / loss.sel(part="step_test"),
        "fresh": -_relative(dataset),
    }
    tables = [
        _by_block(dataset, values.mean("draw").sel(layer=layer), "gain").assign(
            samples=name, layer=layer
        )
        for name, values in gains.items()
        for layer in dataset["layer"].to_numpy().tolist()
    ]
    data = pd.concat(tables, ignore_index=True)
    rows = [(label, str(b)) for label in families_of(dataset) for b in dataset["block"].to_numpy()]
    with canvas(ncols=2, nrows=len(rows)) as page:
        for number, (label, block) in enumerate(rows):
            for axes, name in zip(page.axes[2 * number : 2 * number + 2], gains, strict=True):
                own = data[(data["family"] == label) & (data["block"] == block)]
                plots.layers(
                    axes,
                    own[own["samples"] == name],
                    y="gain",
                    low="low",
                    high="high",
                    spread="bars",
                    labels=("insertion point", "gain [% of the loss before]"),
                )
        page.letter(
            *(
                f"{label}, {block}: {words}"
                for label, block in rows
                for words in ("Δ_R + Δ_ERM", "fresh samples")
            )
        )
        page.legend("width N")
    return page.finish(
        "expansion-points",
        "Gain by insertion point, seen and fresh",
        "Left: Δ_R + Δ_ERM, the gain on the samples of the step and of the training. Right: the "
        "fall of the loss of fresh samples. Both in percent of the loss before; "
        f"{_samples(dataset)}. Points: mean over networks and draws. Bars: 95 % t intervals over "
        f"networks. Insertion points from 0: {_names(dataset)}.",
        "The gain of an expansion at each insertion point, on the samples that made it and on "
        "fresh ones, for each width.",
        data,
    )


def _aligned(dataset: xr.Dataset) -> Figure:
    """Draw how often a step helps, at all points and where it is certified, with the bound."""
    own = dataset.isel(block=0, drop=True)
    there = own["delta_r"].notnull()
    certified = there & (own["b_align_limit"] < 1)
    positive = own["delta_r"] > 0
    parts = {
        "Δ_R > 0, all points": positive.where(there),
        "Δ_R > 0, certified points": positive.where(certified),
        "1 − B_align, certified points": (1 - own["b_align_limit"]).where(certified),
    }
    data = pd.concat(
        [
            _within(over_seeds(dataset, values.mean(["layer", "draw"]), "share")).assign(
                quantity=name
            )
            for name, values in parts.items()
        ],
        ignore_index=True,
    )
    names = families_of(dataset)
    with canvas(ncols=len(names), sharey=True) as page:
        for axes, label in zip(page.axes, names, strict=True):
            own_family = data[data["family"] == label]
            plots.series(
                axes,
                own_family,
                x="width",
                y="share",
                hue="quantity",
                kind="category",
                order=list(parts),
                low="low",
                high="high",
                spread="bars",
                scales=("log", "linear"),
                labels=("width N", "share of points and draws"),
            )
            ticks.at_values(axes.xaxis, own_family["width"])
        page.letter(*names)
        page.legend()
    return page.finish(
        "expansion-aligned",
        "How often a step along −μ_M lowers the test loss",
        "Share of insertion points and draws with Δ_R > 0, of all and of those where the "
        "alignment certificate's upper limit of B_align is below 1, and the share 1 − B_align that "
        f"it promises at least; {_samples(dataset)}. Points: mean over networks. Bars: 95 % t "
        "intervals over networks.",
        "The share of steps that lower the loss of held-out samples against width, beside what the "
        "certificate promises.",
        data,
    )
