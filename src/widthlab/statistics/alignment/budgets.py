"""Budgets (M, K), and the pools that their samples will be drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from widthlab.errors import WidthlabError

Budgets = Sequence[tuple[int, int]]
Pools = tuple[float, float]


def checked_budgets(budgets: Iterable[Any], pools: Any) -> tuple[tuple[int, int], ...]:
    """Return budgets as pairs of whole numbers, (M, K) each.

    Raises WidthlabError, in one sentence, where they are not that or there is none, where pools are
    not two numbers of at least 1 (infinity: independent draws), and for a budget beyond the pools.
    """
    sizes = tuple(pools) if isinstance(pools, Iterable) and not isinstance(pools, str) else ()
    if len(sizes) != 2 or not all(_number(size) and size >= 1 for size in sizes):
        raise WidthlabError(
            "pools must be two numbers of at least 1, the training and the test samples that there "
            f"are (infinity: draws are independent), not {pools!r}"
        )
    if not isinstance(budgets, Iterable):
        raise WidthlabError(f"budgets must be pairs (M, K), for instance [(64, 64)], not {budgets}")
    found = tuple(_pair(budget) for budget in budgets)
    if not found:
        raise WidthlabError("give at least one budget (M, K), for instance (64, 64)")
    for m, k in found:
        if m > sizes[0] or k > sizes[1]:
            raise WidthlabError(
                f"the budget {(m, k)!r} is beyond the pools of {sizes[0]:g} training and "
                f"{sizes[1]:g} test samples; take fewer samples"
            )
    return found


def _pair(budget: Any) -> tuple[int, int]:
    parts = tuple(budget) if isinstance(budget, Iterable) and not isinstance(budget, str) else ()
    if len(parts) != 2 or any(not _number(n) or not float(n).is_integer() or n < 1 for n in parts):
        raise WidthlabError(
            f"a budget must be a pair (M, K) of whole numbers of at least 1, not {budget!r}"
        )
    return int(parts[0]), int(parts[1])


def _number(value: Any) -> bool:
    """Say whether this is a number; numpy's and torch's count."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, str | bytes)
