"""Where what is measured along training is kept, and the dataset that is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

_ENDINGS: dict[str, tuple[str, ...]] = {
    "embedding": ("input", "coordinate"),
    "embedding_tangent": ("input", "coordinate"),
    "embedding_lazy": ("input", "coordinate"),
    "output": ("input", "output_coordinate"),
    "stream": ("position", "input", "coordinate"),
}
_DESCRIPTIONS = {
    "loss": "full-batch loss",
    "loss_tangent": "loss of the network linearised about its initial weights",
    "loss_lazy": "loss of the network of blocks linearised about their initial weights",
    "embedding": "last embedding h_L",
    "embedding_tangent": "last embedding of the linearised network",
    "embedding_lazy": "last embedding of the network of linearised blocks",
    "output": "f = W_Uᵀ h_L/D",
    "stream": "embedding h at a relative depth",
    "preactivation": "rms of the pre-activations at initialisation",
    "preactivation_change": "rms change of pre-activations over their rms at initialisation",
    "local_update": "rms of (u − u_0)·h: what a unit's own weights changed of its pre-activation",
    "inner_change": "norm of the change of inner weights over their initial norm",
    "outer_change": "norm of the change of outer weights over their initial norm",
    "branch_update": "rms over coordinates of α·(mean over j of (v − v_0)·s): a layer's own update",
    "local_update_profile": "local_update by group of neighbouring layers, from the first on",
    "preactivation_change_profile": "preactivation_change by group of layers, from the first on",
    "backward_gain": "rms of the gradient by h_0 over that by h_L",
}


class Record:
    """Arrays (seed, step, …) in float64, NaN where nothing was written."""

    def __init__(self, steps: Sequence[int], seeds: Sequence[int]) -> None:
        self.steps, self.seeds = list(steps), list(seeds)
        self.diverged = np.full(len(self.seeds), -1)
        self._arrays: dict[str, NDArray[np.float64]] = {}

    def living(self, first: int, step: int, loss: Tensor, h: Tensor) -> None:
        """Note the seeds of a batch whose loss or embedding is no longer finite."""
        finite = loss.isfinite() & h.isfinite().all(-1).all(-1)
        rows = slice(first, first + len(loss))
        new = ~finite.cpu().numpy() & (self.diverged[rows] < 0)
        self.diverged[rows][new] = step

    def add(self, first: int, step: int, **values: Tensor) -> None:
        """Keep values (seeds, …) of one batch at one step."""
        column = self.steps.index(step)
        for name, value in values.items():
            if name not in self._arrays:
                shape = (len(self.seeds), len(self.steps), *value.shape[1:])
                self._arrays[name] = np.full(shape, np.nan)
            found = value.detach().double().cpu().numpy()
            self._arrays[name][first : first + len(found), column] = found

    def dataset(self, positions: Sequence[float], attributes: Mapping[str, object]) -> xr.Dataset:
        """Return all of it; seeds are NaN from the step on at which they diverged."""
        gone = (self.diverged[:, None] >= 0) & (
            np.array(self.steps)[None] >= self.diverged[:, None]
        )
        variables: dict[str, object] = {}
        for name, array in self._arrays.items():
            # Linearised networks have a fate of their own.
            if not name.endswith(("_tangent", "_lazy")):
                array[gone] = np.nan
            variables[name] = (
                ("seed", "step", *_ENDINGS.get(name, ("layer_group",))[: array.ndim - 2]),
                array,
                {"units": "1", "description": _DESCRIPTIONS[name]},
            )
        variables["diverged"] = (
            "seed",
            self.diverged,
            {"units": "1", "description": "first step that is not finite, −1 for none"},
        )
        coordinates: dict[str, object] = {"seed": self.seeds, "step": self.steps}
        if positions:
            coordinates["position"] = list(positions)
        return xr.Dataset(variables, coordinates, dict(attributes))


def limit_dataset(
    values: Mapping[str, NDArray[np.float64]],
    steps: Sequence[int],
    positions: Sequence[float],
    attributes: Mapping[str, object],
    each: Sequence[str] = (),
) -> xr.Dataset:
    """Return means over replicates of values (replicate, step, …), with their standard errors.

    One replicate is taken as exact, and gets no error. Of the values named in `each` all
    replicates are kept too, as `<name>_replicates`.
    """
    variables: dict[str, object] = {}
    for name, array in values.items():
        dims = ("step", *_ENDINGS.get(name, ())[: array.ndim - 2])
        about = {"units": "1", "description": _DESCRIPTIONS[name]}
        variables[name] = (dims, array.mean(0), about)
        if len(array) > 1:
            error = array.std(0, ddof=1) / np.sqrt(len(array))
            about = {"units": "1", "description": f"standard error of {name}"}
            variables[f"{name}_error"] = (dims, error, about)
        if name in each:
            about = {"units": "1", "description": f"{_DESCRIPTIONS[name]}, by replicate"}
            variables[f"{name}_replicates"] = (("replicate", *dims), array, about)
    coordinates: dict[str, object] = {"step": list(steps)}
    if positions:
        coordinates["position"] = list(positions)
    return xr.Dataset(variables, coordinates, dict(attributes))
