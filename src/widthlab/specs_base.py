"""What every typed specification is built from: numbers with units, and the base of all types.

A leaf of the package (no torch), beneath `specs`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from math import inf
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)


def _whole(value: Any) -> Any:
    """Accept 16 and 16.0 as the same whole number; refuse booleans and text."""
    if isinstance(value, bool | str):
        raise ValueError("must be a whole number")
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError("must be a whole number")
        return int(value)
    return value


def _real(value: Any) -> Any:
    """Accept 1, 1.0 and the text that YAML 1.1 makes of 1e-3; refuse booleans."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def Unit(name: str) -> Any:  # noqa: N802 - reads as a type in an annotation
    """Annotate a field with the unit of its value, for the schema of a study."""
    return Field(json_schema_extra={"unit": name})


# The coercion stands outermost, so that bounds reach the JSON schema.
WHOLE = BeforeValidator(_whole)
REAL = BeforeValidator(_real)
Count = Annotated[int, Field(ge=1), WHOLE]
Seed = Annotated[int, Field(ge=0, lt=2**63), WHOLE]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), REAL]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), REAL]
Fraction = Annotated[float, Field(gt=0, lt=1), REAL]


def nearest(word: str, known: Iterable[str]) -> str:
    """Say which known words a misspelt one may mean: "did you mean 'x'?" and all of them."""
    known = list(known)
    close = difflib.get_close_matches(word.replace("-", "_").lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}allowed: {', '.join(known)}"


class Spec(BaseModel):
    """Base of every typed specification: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            known = list(cls.model_fields)
            for key in values:
                if key not in known:
                    raise ValueError(f"unknown key {key!r}; {nearest(str(key), known)}")
        return values


IDENTITY = {"identity": True}
"""Context of `model_dump` that leaves out where things lie: addresses hash what they are."""


class Placed(Spec):
    """Base of what has fields that say where something lies, and others that say what it is."""

    def places(self) -> tuple[str, ...]:
        """Return the fields that say where."""
        return ()

    @model_serializer(mode="wrap")
    def _identity(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if isinstance(info.context, dict) and info.context.get("identity"):
            for place in self.places():
                values.pop(place, None)
        return values


class Data(Placed):
    """Base of every data set: how much of it is used, and how it is split."""

    split_seed: Annotated[Seed, Unit("seed")] = 0
    """Seed of the random choice and order of samples."""
    train_samples: Annotated[Count | None, Unit("samples")] = None
    """Training samples to keep, class-balanced where possible; left out, all."""
    test_samples: Annotated[Count | None, Unit("samples")] = None
    """Test samples to keep; left out, all."""

    def places(self) -> tuple[str, ...]:
        """Return the field that says where a folder or file lies: a fingerprint says what it is."""
        return ("path",)

    def most(self) -> tuple[float, float]:
        """Return the most training and test samples there can be, as far as is known unread."""
        train, test = self._whole()
        return min(train, self.train_samples or inf), min(test, self.test_samples or inf)

    def _whole(self) -> tuple[float, float]:
        """Return the sizes of the two parts of the whole data set, infinite if not known."""
        return inf, inf
