"""Correlation between two neurons' gradients, estimated over draws with its standard error.

At initialisation E[g_i g_j] = 0 at every width, by the symmetry of the weights, so that the
signed correlation only shows sampling noise. The squared one, E[g_i² g_j²]/(E g_i²)² − 1, is the
finite-width effect: (1 + 5/N)^k − 1 for ReLU with k hidden layers above, 2/N for 5/N if linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from widthlab.errors import WidthlabError

Array = NDArray[np.float64]


def squared_correlation(m22: xr.DataArray, m2: xr.DataArray) -> xr.Dataset:
    """Return E[m22]/(E m2)² − 1, from moments with the dimension `draw`.

    E is the mean over draws. The ratio is made for every input, since E m2 may differ between
    inputs, and then averaged over the dimension `input`, if there is one. Inputs of one draw
    share its weights, so the standard error is the delete-one jackknife over draws of that whole
    average. Variables, with the remaining dimensions: `estimate`, `standard_error`, and `draws`,
    the number of draws that were finite and so entered. Raises WidthlabError with fewer than two
    draws.
    """

    def ratio(means: list[Array]) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return means[0] / means[1] ** 2 - 1

    return _jackknife(ratio, m22, m2, "E[g_i² g_j²]/(E g_i²)² − 1 over pairs of neurons i ≠ j")


def signed_correlation(
    m11: xr.DataArray, m2: xr.DataArray, m22: xr.DataArray | None = None
) -> xr.Dataset:
    """Return E[m11]/E[m2] as `squared_correlation` does, with its `sampling_floor` beside it.

    The floor is the standard error to expect where the true value is zero; `sampling_floor` says
    how it is made. `m2` needs the coordinate `neurons`, as `over_draws` gives it. Where
    `m22` is given the floor takes the squared correlation into account.
    """

    def ratio(means: list[Array]) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return means[0] / means[1]

    if "neurons" not in m2.coords:
        raise WidthlabError("the sampling floor needs the coordinate `neurons` (N) on m2")
    result = _jackknife(ratio, m11, m2, "E[g_i g_j]/E[g_i²] over pairs of neurons i ≠ j")
    squared = 0.0 if m22 is None else squared_correlation(m22, m2)["estimate"]
    result["sampling_floor"] = xr.apply_ufunc(
        np.vectorize(sampling_floor, otypes=[float]), result["draws"], m2["neurons"], squared
    ).assign_attrs(
        units="1", description="standard error to expect where the signed correlation is zero"
    )
    return result


def sampling_floor(draws: int, neurons: int, squared: float = 0.0) -> float:
    """Return √(2(1 + ρ)/(N(N−1)·draws)), the standard error of a signed correlation of zero.

    m11 is the mean of g_i g_j over N(N−1)/2 distinct pairs. If signs are random, products of
    different pairs are uncorrelated, and each has the variance E[g_i² g_j²] = (1 + ρ)(E g²)², ρ
    being the squared correlation (`squared`); hence Var m11 = 2(1 + ρ)(E g²)²/(N(N−1)) for one
    draw. It is that of one input: an average over inputs whose gradients differ lies below it.
    NaN where N < 2.
    """
    if neurons < 2 or draws < 1:
        return math.nan
    return math.sqrt(max(0.0, 2 * (1 + squared)) / (neurons * (neurons - 1) * draws))


def _jackknife(
    statistic: Callable[[list[Array]], Array],
    first: xr.DataArray,
    second: xr.DataArray,
    description: str,
) -> xr.Dataset:
    """Return a function of two means over draws, averaged over inputs, with its error."""
    if "draw" not in first.dims or first.sizes != second.sizes:
        raise WidthlabError(
            f"correlations need moments of the same dimensions with `draw` among them, not "
            f"{dict(first.sizes)} and {dict(second.sizes)}"
        )
    inputs = [dim for dim in ("input",) if dim in first.dims]
    others = [str(dim) for dim in first.dims if dim not in ("draw", "input")]
    first = first.transpose("draw", *inputs, *others)
    second = second.transpose("draw", *inputs, *others)
    samples = [np.asarray(array, dtype=np.float64) for array in (first, second)]
    if not inputs:
        samples = [array[:, None] for array in samples]
    # A draw that overflowed for one input is left out, and seen to be, for all of its inputs.
    finite = np.logical_and.reduce(np.isfinite(np.stack(samples)), axis=(0, 2))
    counts = finite.sum(0)
    if samples[0].shape[0] < 2:
        raise WidthlabError("a correlation needs at least two draws")
    mask = finite[:, None]
    samples = [np.where(mask, array, 0.0) for array in samples]
    totals = [array.sum(0) for array in samples]
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = statistic([total / counts for total in totals]).mean(0)
        left_out = statistic(
            [(total - array) / (counts - 1) for total, array in zip(totals, samples, strict=True)]
        ).mean(1)
        left_out = np.where(finite, left_out, 0.0)
        spread = np.where(finite, (left_out - left_out.sum(0) / counts) ** 2, 0.0).sum(0)
        error = np.sqrt(spread * (counts - 1) / counts)
    error = np.where(counts > 1, error, np.nan)
    coords = {name: c for name, c in first.coords.items() if set(c.dims) <= set(others)}
    return xr.Dataset(
        {
            "estimate": (others, estimate, {"units": "1", "description": description}),
            "standard_error": (
                others,
                error,
                {"units": "1", "description": "delete-one jackknife over draws"},
            ),
            "draws": (
                others,
                counts,
                {"units": "1", "description": f"finite draws, of {first.sizes['draw']}"},
            ),
        },
        coords=coords,
    )
