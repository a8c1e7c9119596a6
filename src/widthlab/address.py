"""Addresses: a result is named by everything that determines it.

An address is a readable slug and a hash of the canonical JSON of a typed specification, the
addresses of its inputs and the digest of the code that computes it (see `code_digest`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    import numpy as np

HASH_LENGTH = 12
"""Hexadecimal digits in an address: 48 bits, so a million results collide with chance 2e-3."""


def canonical_json(value: Any) -> str:
    """Return one text for all spellings of the same value.

    Keys are sorted, typed models are dumped with their coerced values (1 becomes 1.0 in a real
    field), and there is no white space. Raises ValueError for NaN and infinities, which JSON
    does not have.
    """
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=_plain,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no canonical JSON")


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def slugify(*parts: object) -> str:
    """Join words into one lower-case slug of letters, digits and hyphens."""
    return "-".join(word for part in parts if (word := _word(str(part))))


@cache
def _word(part: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", part.lower())


def seed_sequence(identity: Any) -> np.random.SeedSequence:
    """Return the seeds of a piece of work: of what it is, not of when, where or by what code."""
    import numpy as np

    return np.random.SeedSequence(int(digest(canonical_json(identity))[:32], 16))


def address(slug: str, specification: Any, inputs: Iterable[str], code: str) -> str:
    """Name a result: slug and hash of specification, input addresses and code digest."""
    identity: Mapping[str, Any] = {
        "specification": specification,
        "inputs": sorted(inputs),
        "code": code,
    }
    return f"{slug}-{digest(canonical_json(identity))[:HASH_LENGTH]}"
