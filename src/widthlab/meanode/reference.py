"""The limit from finite networks: large ones, averaged over seeds, at two depths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from widthlab.errors import WidthlabError
from widthlab.meanode.network import ResidualNetwork
from widthlab.meanode.problems import Problem
from widthlab.meanode.training import train
from widthlab.statistics.draws import Seed
from widthlab.theory.deep_limits import REFERENCE_FACTOR


def reference(
    network: ResidualNetwork,
    problem: Problem,
    *,
    eta: float | tuple[float, float],
    steps: int,
    seeds: int,
    seed: Seed = 0,
    against: Sequence[ResidualNetwork] = (),
    **options: Any,
) -> xr.Dataset:
    """Return the mean over seeds of `network`, Richardson-extrapolated in depth, with its error.

    The same seeds' numbers are drawn afresh at half the depth: bias is a/L + …, so that
    2·mean(L) − mean(L/2) is free of the first order, at √6 times the standard error of a mean.
    The dataset, in the layout of `limit.solve`: `loss`, `embedding`, `output`, `stream` and
    `<name>_error`, the standard error over seeds; `embedding_mean` without extrapolation; `euler`
    (step), the rms difference of the two depths' embeddings, which is about the bias of
    `embedding_mean`, and `sampling` (step), the rms standard error of `embedding_mean`; `diverged`,
    the number of seeds left out of all means. `options` are those of `train`. Raises WidthlabError
    for a depth that is odd, fewer than 2 seeds, a reference that has not at least eight times the
    units L·M of each network in `against`, and one of whose seeds fewer than 2 are finite.
    """
    check_larger(network, against)
    if network.depth % 2 or network.depth < 4:
        raise WidthlabError(
            f"a reference's depth must be even and at least 4, not {network.depth}: it is run at "
            "half of it too, to tell its Euler error"
        )
    if seeds < 2:
        raise WidthlabError(f"a reference needs at least 2 seeds to tell its error, not {seeds}")
    positions = options.pop("positions", ())
    shared = [p for p in positions if float(p * network.depth / 2).is_integer()]
    if len(shared) < len(list(positions)):
        raise WidthlabError(
            f"positions of a reference must be layers at depth {network.depth // 2} too, that is "
            f"multiples of 2/{network.depth}, not {list(positions)}"
        )
    # Independent draws at the two depths: other numbers of the same root.
    runs = [
        train(
            replace(network, depth=depth),
            problem,
            eta=eta,
            steps=steps,
            seeds=numbers,
            seed=seed,
            positions=positions,
            **options,
        )
        for depth, numbers in (
            (network.depth, range(seeds)),
            (network.depth // 2, range(seeds, 2 * seeds)),
        )
    ]
    diverged = sum(int((run.diverged >= 0).sum()) for run in runs)
    deep, half = (run.isel(seed=np.flatnonzero(run.diverged.values < 0)) for run in runs)
    if min(deep.sizes["seed"], half.sizes["seed"]) < 2:
        raise WidthlabError(
            f"{diverged} of {2 * seeds} runs of the reference diverged; use a smaller eta or alpha"
        )
    found: dict[str, xr.DataArray] = {}
    for name in ("loss", "embedding", "output", "stream"):
        if name not in deep:
            continue
        means = deep[name].mean("seed"), half[name].mean("seed")
        variances = _variance_of_mean(deep[name]), _variance_of_mean(half[name])
        found[name] = (2 * means[0] - means[1]).assign_attrs(deep[name].attrs)
        found[f"{name}_error"] = (4 * variances[0] + variances[1]) ** 0.5
        if name == "embedding":
            found["embedding_mean"] = means[0]
            found["euler"] = _rms(means[0] - means[1])
            found["sampling"] = variances[0].mean(["input", "coordinate"]) ** 0.5
    found["diverged"] = xr.DataArray(diverged)
    return xr.Dataset(found, attrs={"depth": network.depth, "hidden": network.hidden})


def check_larger(network: ResidualNetwork, against: Sequence[ResidualNetwork]) -> None:
    """Raise WidthlabError where a reference is not larger than what it is compared with."""
    for other in against:
        least = REFERENCE_FACTOR * other.depth * other.hidden
        if network.depth * network.hidden < least:
            raise WidthlabError(
                f"a reference of depth {network.depth} and hidden width {network.hidden} is not "
                f"{REFERENCE_FACTOR} times larger than a network of depth {other.depth} and hidden "
                f"width {other.hidden}; make its L·M at least {least}"
            )


def _variance_of_mean(values: xr.DataArray) -> xr.DataArray:
    return values.var("seed", ddof=1) / values.sizes["seed"]


def _rms(values: xr.DataArray) -> xr.DataArray:
    return (values**2).mean(["input", "coordinate"]) ** 0.5
