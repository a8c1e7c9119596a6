"""What differs between two versions: claims, cells, experiments and the study's text.

Functions of values; `holdings` alone reads an archive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from widthlab.claims import Claim

if TYPE_CHECKING:
    from widthlab.archive.repository import Archive, Version

INTERVAL = 3.92
"""Width of a 95 % interval in standard errors."""

Change = Literal["flipped", "changed", "added", "removed"]
CHANGES: tuple[Change, ...] = ("flipped", "changed", "added", "removed")
"""The order of claims: verdicts that flipped come first."""


@dataclass(frozen=True)
class Cell:
    """One cell of a version."""

    experiment: str
    address: str
    label: str
    """Label of its architecture in figures."""
    digest: str
    """SHA-256 of its statistics; empty where they were gone when the version was made."""

    @property
    def slug(self) -> str:
        """The readable part of the address."""
        return self.address.rpartition("-")[0]


@dataclass(frozen=True)
class Holdings:
    """What a version holds, as far as versions are compared."""

    sweeps: Mapping[str, str]
    """Address of each experiment's sweep."""
    claims: Sequence[Claim]
    cells: Sequence[Cell]
    config: Mapping[str, Any]
    """The study as it was written."""


@dataclass(frozen=True)
class ClaimChange:
    """One claim in both versions, or in one of them."""

    change: Change
    old: Claim | None
    new: Claim | None

    @property
    def claim(self) -> Claim:
        """The claim, as the newer version that has it states it."""
        found = self.new or self.old
        assert found is not None
        return found

    @property
    def difference(self) -> float | None:
        """New minus old; None where either is not measured."""
        old, new = (claim.measured if claim else None for claim in (self.old, self.new))
        return None if old is None or new is None else new - old

    @property
    def standard_errors(self) -> float | None:
        """The difference in standard errors of both together; None where both are exact."""
        difference = self.difference
        errors = [e for claim in (self.old, self.new) if (e := _standard_error(claim)) is not None]
        error = math.hypot(*errors)
        return None if difference is None or error == 0 else difference / error


@dataclass(frozen=True)
class CellChange:
    """One cell that is in one version only, or that was made anew.

    Made anew it has another hash (other code, other inputs, another specification), or the same
    one and other bytes.
    """

    old: Cell | None
    new: Cell | None

    @property
    def cell(self) -> Cell:
        """The cell, as the newer version that has it names it."""
        found = self.new or self.old
        assert found is not None
        return found

    @property
    def same_bytes(self) -> bool | None:
        """Whether a cell made anew came out the same; None where that is not known."""
        if self.old is None or self.new is None or not self.old.digest or not self.new.digest:
            return None
        return self.old.digest == self.new.digest


@dataclass(frozen=True)
class Differences:
    """All that differs between two versions."""

    claims: Sequence[ClaimChange]
    """Flipped verdicts first, then changed numbers, then claims of one version only."""
    cells: Sequence[CellChange]
    sweeps: Mapping[str, tuple[str | None, str | None]]
    """Old and new address of each experiment's sweep that is not the same."""
    text: Mapping[str, tuple[Any, Any]]
    """Old and new value of the study by dotted key; None where there is none."""

    def __bool__(self) -> bool:
        return bool(self.claims or self.cells or self.sweeps or self.text)


def holdings(archive: Archive, version: Version) -> Holdings:
    """Return what a version holds."""
    from widthlab.archive import contents
    from widthlab.claims import from_json

    results = archive.results(version)
    claims = [
        claim
        for sweep in archive.sweeps(version).values()
        for claim in from_json(sweep.attrs["claims"])
    ]
    cells = [
        Cell(line["experiment"], line["address"], line["label"], line["digest"])
        for line in contents.lines(results)
        if line["stage"] == "extract"
    ]
    return Holdings(version.sweeps, claims, cells, contents.config_of(results))


def compare(old: Holdings, new: Holdings) -> Differences:
    """Return what differs between two versions."""
    names = sorted({*old.sweeps, *new.sweeps})
    sweeps = {name: (old.sweeps.get(name), new.sweeps.get(name)) for name in names}
    return Differences(
        claims=list(_claims(old.claims, new.claims)),
        cells=list(_cells(old.cells, new.cells)),
        sweeps={name: pair for name, pair in sweeps.items() if pair[0] != pair[1]},
        text=changed_keys(old.config, new.config),
    )


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return old and new value of each dotted key that differs; None where there is none."""
    before, after = dict(_flat(old)), dict(_flat(new))
    keys = dict.fromkeys((*before, *after))
    pairs = {key: (before.get(key), after.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def _claims(old: Iterable[Claim], new: Iterable[Claim]) -> Iterator[ClaimChange]:
    before, after = ({claim.id: claim for claim in claims} for claims in (old, new))
    found = []
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if one == other:
            continue
        if one is None or other is None:
            found.append(ClaimChange("added" if one is None else "removed", one, other))
        else:
            flipped = one.verdict != other.verdict
            found.append(ClaimChange("flipped" if flipped else "changed", one, other))
    return iter(sorted(found, key=_order))


def _order(change: ClaimChange) -> tuple[int, float]:
    """Verdicts that flipped first, and among claims of one kind the largest difference."""
    size = change.standard_errors
    if size is None:
        size = math.inf if change.difference else 0.0
    return CHANGES.index(change.change), -abs(size)


def _cells(old: Iterable[Cell], new: Iterable[Cell]) -> Iterator[CellChange]:
    """Pair cells of the same experiment, label and slug that have another hash."""
    before, after = ({cell.address: cell for cell in cells} for cells in (old, new))
    gone = [cell for address, cell in before.items() if address not in after]
    waiting: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in gone:
        waiting.setdefault((cell.experiment, cell.label, cell.slug), []).append(cell)
    paired = set()
    for address, cell in after.items():
        if address in before:
            change = CellChange(before[address], cell)
            if change.same_bytes is False:
                yield change
            continue
        same = waiting.get((cell.experiment, cell.label, cell.slug))
        partner = same.pop(0) if same else None
        if partner is not None:
            paired.add(partner.address)
        yield CellChange(partner, cell)
    for cell in gone:
        if cell.address not in paired:
            yield CellChange(cell, None)


def _standard_error(claim: Claim | None) -> float | None:
    if claim is None or claim.low is None or claim.high is None:
        return None
    return (claim.high - claim.low) / INTERVAL
