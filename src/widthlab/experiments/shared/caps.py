"""Points that lie beyond the axes of a figure, as those of runs that explode do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def cap(axes: Axes, data: pd.DataFrame, x: str, y: str, colours: dict[object, str], by: str) -> int:
    """Mark points above the top of the axes, and those not finite, by arrows at the top edge.

    Colours are by the value of the column `by`. Returns how many there are.
    """
    top = axes.get_ylim()[1]
    above = data[(data[y] > top) | ~np.isfinite(data[y].to_numpy(dtype=float))]
    for value, own in above.groupby(by, sort=False):
        axes.plot(
            own[x],
            np.full(len(own), top),
            linestyle="",
            marker=r"$\uparrow$",
            markersize=11,
            color=colours[value],
            clip_on=False,
            zorder=6,
        )
    axes.set_ylim(top=top)
    return len(above)
