"""The questions the laboratory can ask: one module each, found by its name.

A question is one file, or a folder where it has several rooms; `shared` is what they have in
common.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def names() -> tuple[str, ...]:
    """Return the names of all experiments, in alphabetical order."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "shared"))


def load(name: str) -> ModuleType:
    """Return an experiment's module (see `experiments.shared.base` for what it offers)."""
    return import_module(f"{__name__}.{name}")
