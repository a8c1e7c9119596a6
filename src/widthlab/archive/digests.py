"""The digest of a dataset's content: its numbers, texts, names and attributes.

Icechunk's files have no checksum of their own, and a flipped bit in compressed numbers may give
other numbers without an error. The digest does not depend on how a store lays out its bytes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import xarray as xr


def content_digest(dataset: xr.Dataset) -> str:
    """Return one SHA-256 for all variables (values, dimensions, type, attributes) of a dataset.

    Text is text, whatever type holds it; the order of variables and attributes does not matter.
    """
    total = hashlib.sha256(_words(dataset.attrs))
    for name in sorted(dataset.variables, key=str):
        variable = dataset.variables[name]
        values = np.asarray(variable.values)
        if values.dtype.kind in "biufc":
            kind, content = values.dtype.newbyteorder("<").str, _numbers(values)
        else:
            kind, content = "text", _words([str(value) for value in values.ravel().tolist()])
        head = [str(name), list(variable.dims), list(values.shape), kind, len(content)]
        total.update(_words(head) + _words(variable.attrs) + content)
    return total.hexdigest()


def _numbers(values: np.ndarray[Any, Any]) -> bytes:
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return little.tobytes()


def _words(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=_plain)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _plain(value: Any) -> Any:
    """Return a number or an array of numpy as JSON has it."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
