"""Reading a study's results from Python, without typing addresses."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from widthlab.errors import WidthlabError
from widthlab.plan import Plan, Work
from widthlab.store import datasets
from widthlab.store.publish import finished, intact, payload
from widthlab.study import Study
from widthlab.study import read as read_study

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.archive.repository import Archive, Version


class Sweeps:
    """The sweeps of a study by experiment; each is opened when it is asked for.

    `in`, `len` and iteration are over those that are finished.
    """

    def __init__(self, study: Study) -> None:
        plan = Plan.of(study)
        self._results = plan.results
        self._works = {work.specification["experiment"]: work for work in plan.sweeps.values()}

    def __getitem__(self, experiment: str) -> xr.Dataset:
        """Return an experiment's sweep; raises WidthlabError where it is not there."""
        work = self._work(experiment)
        if not self._is_there(work):
            raise WidthlabError(
                f"the sweep of {experiment} is not finished ({work.address}); run snakemake"
            )
        return datasets.open_dataset(payload(self._results, work))

    def cells(self, experiment: str) -> dict[str, xr.Dataset]:
        """Return the statistics of an experiment's finished cells by address."""
        return {
            work.address: datasets.open_dataset(payload(self._results, work))
            for work in self._work(experiment).inputs
            if self._is_there(work)
        }

    def __iter__(self) -> Iterator[str]:
        works = self._works.items()
        return (name for name, work in works if finished(self._results, work) is not None)

    def __contains__(self, experiment: object) -> bool:
        return experiment in list(self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _is_there(self, work: Work) -> bool:
        """Look at the bytes before they are read; what is damaged is moved aside, and missing."""
        there = finished(self._results, work) is not None
        return there and intact(self._results, work, warnings.warn)

    def _work(self, experiment: str) -> Work:
        if experiment not in self._works:
            raise WidthlabError(_unknown("study", experiment, self._works))
        return self._works[experiment]


class ArchivedSweeps(Sweeps):
    """The sweeps of one version by experiment, read from the archive alone."""

    def __init__(self, archive: Archive, version: Version) -> None:
        self._archive, self._version = archive, version

    def __getitem__(self, experiment: str) -> xr.Dataset:
        """Return an experiment's sweep; raises WidthlabError where the version has none."""
        if experiment not in self._version.sweeps:
            raise WidthlabError(_unknown("version", experiment, self._version.sweeps))
        return self._archive.sweep(self._version, experiment)

    def cells(self, experiment: str) -> dict[str, xr.Dataset]:
        """Raise WidthlabError: an archive holds sweeps, not the statistics of cells."""
        raise WidthlabError(
            f"the archive holds no cells, only sweeps; 'widthlab restore {self._version.id}' "
            "says how to make the cells again"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._version.sweeps)


def open(study: str | Path = "config.yaml", *, version: str | None = None) -> Sweeps:
    """Return the sweeps of a study, given by its YAML file.

    With a `version` (its tag, or how its id begins) they are those of that version, from the
    study's archive. As for snakemake, folders in the study are relative to where Python runs.
    Raises WidthlabError where the file is not a study, or the archive has no such version.
    """
    parsed = read_study(Path(study))
    if version is None:
        return Sweeps(parsed)
    from widthlab.archive.repository import Archive

    archive = Archive.open(parsed)
    return ArchivedSweeps(archive, archive.find(version))


def _unknown(what: str, experiment: str, known: Iterable[str]) -> str:
    return f"the {what} has no experiment {experiment!r}; it has {', '.join(known)}"
