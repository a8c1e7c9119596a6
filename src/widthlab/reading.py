"""Reading a study's results from Python, without typing addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from widthlab.errors import WidthlabError
from widthlab.plan import Plan, Work
from widthlab.store import datasets
from widthlab.store.manifest import read
from widthlab.store.publish import folder, payload
from widthlab.study import Study
from widthlab.study import read as read_study

if TYPE_CHECKING:
    import xarray as xr


class Sweeps(Mapping[str, "xr.Dataset"]):
    """The finished sweeps of a study by experiment; each is opened when it is asked for."""

    def __init__(self, study: Study, base: Path) -> None:
        plan = Plan.of(study)
        self._results = base / plan.results
        self._works = {work.specification["experiment"]: work for work in plan.sweeps.values()}

    def __getitem__(self, experiment: str) -> xr.Dataset:
        return datasets.open_dataset(payload(self._results, self._finished(experiment)))

    def cells(self, experiment: str) -> dict[str, xr.Dataset]:
        """Return the statistics of an experiment's finished cells by address."""
        return {
            work.address: datasets.open_dataset(payload(self._results, work))
            for work in self._work(experiment).inputs
            if read(folder(self._results, work)) is not None
        }

    def __iter__(self) -> Iterator[str]:
        works = self._works.items()
        return (name for name, work in works if read(folder(self._results, work)) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _work(self, experiment: str) -> Work:
        if experiment not in self._works:
            known = ", ".join(self._works)
            raise WidthlabError(f"the study has no experiment {experiment!r}; it has {known}")
        return self._works[experiment]

    def _finished(self, experiment: str) -> Work:
        work = self._work(experiment)
        if read(folder(self._results, work)) is None:
            raise WidthlabError(
                f"the sweep of {experiment} is not finished ({work.address}); run snakemake"
            )
        return work


def open(study: str | Path = "config.yaml") -> Sweeps:
    """Return the finished sweeps of a study, given by its YAML file.

    Results lie relative to the file's own folder, as for snakemake run there. Raises WidthlabError
    where the file is not a study.
    """
    path = Path(study)
    return Sweeps(read_study(path), path.parent)
