"""What `widthlab.certify` is given, looked at before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from torch import nn

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.estimates import Laws
from widthlab.statistics.alignment.pooling import Pooling


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What must be right by itself, whatever the network is."""

    model: Any
    train_loader: Any
    test_loader: Any
    target: Any
    laws: Any
    level: Any
    seed: Any

    def check(self) -> None:
        """Raise WidthlabError with the first argument that cannot be used, and what to give."""
        if not isinstance(self.model, nn.Module):
            raise WidthlabError(
                f"the model must be a torch.nn.Module, not a {type(self.model).__name__}"
            )
        for name in ("train_loader", "test_loader"):
            loader = getattr(self, name)
            if not any(hasattr(loader, method) for method in ("__iter__", "__getitem__")):
                raise WidthlabError(
                    f"{name} must give batches, as a torch DataLoader or a list of them does, but "
                    f"it is a {type(loader).__name__}"
                )
        if not _fraction(self.target):
            raise WidthlabError(
                f"the target of a bound must lie between 0 and 1, not {self.target!r}"
            )
        if self.laws not in get_args(Laws):
            raise WidthlabError(f"laws must be equal or different, not {self.laws!r}")
        if not _fraction(self.level):
            raise WidthlabError(f"the level must lie between 0 and 1, not {self.level!r}")
        if not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise WidthlabError(f"the seed must be a whole number of at least 0, not {self.seed!r}")


def pooled_points(points: Any, pooling: Any) -> dict[str, Pooling]:
    """Return how each name or pattern of modules is pooled.

    `points` are one or several, or a mapping to poolings; `pooling`, or its name, is that of those
    that have none of their own. Raises WidthlabError for anything else.
    """
    if isinstance(points, str):
        points = [points]
    if not isinstance(points, Iterable):
        raise WidthlabError(
            f"points must be names or patterns of modules, for instance 'layer*', not {points!r}"
        )
    if not isinstance(points, Mapping):
        points = [(name, pooling) for name in points]
    else:
        points = list(points.items())
    for name, _ in points:
        if not isinstance(name, str):
            raise WidthlabError(
                f"an insertion point is the name of a module or a pattern, not {name!r}"
            )
    return {name: _pooling(how) for name, how in points}


def _pooling(how: Any) -> Pooling:
    if isinstance(how, Pooling):
        return how
    return Pooling(how)  # which says what it may be


def _fraction(value: Any) -> bool:
    """Say whether this is a number between 0 and 1, without them."""
    return isinstance(value, int | float | np.number) and bool(0 < value < 1)
