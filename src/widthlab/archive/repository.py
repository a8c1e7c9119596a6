"""The archive: every version of every study's sweeps, in one Icechunk repository.

One branch for each study, one snapshot for each version, one group for each experiment's sweep
and a group `results` (see `contents`). Commits are transactions: a version is there whole or not
at all. All writers hold one lock, since a local file system has no atomic exchange of references.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icechunk
import xarray as xr
import zarr

from widthlab import __version__, reporting
from widthlab.archive import contents
from widthlab.archive.digests import content_digest
from widthlab.archive.location import Location
from widthlab.archive.opening import existing, explained, locked, made
from widthlab.archive.snapshot import Version
from widthlab.errors import WidthlabError
from widthlab.plan import Plan
from widthlab.specs import nearest
from widthlab.store import datasets
from widthlab.store.manifest import Manifest, git_state, tree_digest
from widthlab.store.publish import payload
from widthlab.study import Study

if TYPE_CHECKING:
    from icechunk import Repository

__all__ = ["Archive", "Version"]

RESULTS = "results"
"""The group of the table of all results; no experiment has this name."""
FORMAT = 1
"""Counts up when what a version holds changes, so that a study is then committed anew."""
ATTEMPTS = 5
"""How often a commit is tried where another writer is faster."""
TAG = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class Archive:
    """The versions of all studies at one location."""

    def __init__(self, location: Location, repository: Repository) -> None:
        self.location = location
        self.repository = repository

    @classmethod
    def open(cls, study: Study) -> Archive:
        """Open the archive of a study; raises WidthlabError if there is none yet."""
        location = Location.of(study)
        found = existing(location)
        if found is None:
            raise WidthlabError(
                f"there is no archive at {location.address} yet; a run of snakemake that "
                "finishes makes it"
            )
        return cls(location, found)

    @classmethod
    def create(cls, study: Study) -> Archive:
        """Open the archive of a study, or make an empty one."""
        location = Location.of(study)
        with locked(location):
            return cls(location, existing(location) or made(location))

    # ── writing ─────────────────────────────────────────────────────────────────────────────

    def commit(self, plan: Plan) -> Version | None:
        """Commit a plan's sweeps; None if the newest version of the study holds just these.

        Raises WidthlabError where a sweep is not finished or is damaged, or the archive cannot
        be written; the archive then is as it was.
        """
        found = reporting.manifests(plan)
        sweeps = {sweep.specification["experiment"]: sweep for sweep in plan.sweeps.values()}
        for name, sweep in sweeps.items():
            if sweep.address not in found:
                raise WidthlabError(
                    f"the sweep of {name} is not finished ({sweep.address}); run snakemake"
                )
        name = plan.study.name
        metadata: dict[str, Any] = {
            "format": FORMAT,
            "study": name,
            "study_digest": contents.study_digest(plan),
            "sweeps": {
                experiment: {"address": sweep.address, "digest": found[sweep.address].digest}
                for experiment, sweep in sweeps.items()
            },
        }
        with locked(self.location), explained("write", self.location):
            for _ in range(ATTEMPTS):
                head = self.head(name)
                if head is not None and metadata.items() <= head[1].items():
                    return None
                try:
                    snapshot = self._write(plan, found, head[0] if head else None, metadata)
                except icechunk.ConflictError:
                    # A writer on another machine was faster, and may have written the same.
                    continue
                return Version.of(self.repository.lookup_snapshot(snapshot), {})
        raise WidthlabError(
            f"other writers kept changing the archive {self.location.address}; run snakemake again"
        )

    def _write(
        self,
        plan: Plan,
        found: Mapping[str, Manifest],
        head: Version | None,
        metadata: Mapping[str, Any],
    ) -> str:
        """Commit a plan's sweeps on top of a version and return the snapshot's id."""
        name = plan.study.name
        if name not in self.repository.list_branches():
            root = list(self.repository.ancestry(branch="main"))[-1]
            try:
                self.repository.create_branch(name, root.id)
            except icechunk.IcechunkError:
                # A writer on another machine may have been faster.
                if name not in self.repository.list_branches():
                    raise
        before = head.digests if head else {}
        held = dict(head.contents) if head else {}
        table = contents.table(plan, found)
        message = self._message(head, table, metadata["sweeps"])
        commit, dirty = git_state()
        session = self.repository.writable_session(name)
        for gone in sorted(set(before) - set(metadata["sweeps"])):
            del zarr.open_group(session.store, mode="a")[gone]
        for sweep in plan.sweeps.values():
            experiment, manifest = sweep.specification["experiment"], found[sweep.address]
            if before.get(experiment) == manifest.digest:
                continue
            path = payload(plan.results, sweep)
            _check(path, manifest)
            with datasets.open_dataset(path) as dataset:
                _write(dataset, session.store, experiment)
                held[experiment] = content_digest(dataset)
        _write(table, session.store, RESULTS)
        held[RESULTS] = content_digest(table)
        contained = {"contents": {group: held[group] for group in (*metadata["sweeps"], RESULTS)}}
        made_by = {"git_commit": commit, "git_dirty": dirty, "widthlab": __version__}
        return session.commit(message, {**metadata, **contained, **made_by})

    def tag(self, name: str, version: Version) -> None:
        """Give a version a name for good.

        Raises WidthlabError where another version or this one has it, had it, or the name is
        not made of letters, digits, dots, hyphens and underscores.
        """
        if not re.fullmatch(TAG, name):
            raise WidthlabError(
                f"{name!r} is no name for a version: use letters, digits, '.', '_' and '-', "
                "beginning with a letter or digit"
            )
        with locked(self.location), explained("write", self.location):
            if name in self.repository.list_tags():
                taken = self.find(name)
                raise WidthlabError(
                    f"the tag {name!r} is taken: it is version {taken.id} of {taken.study}, "
                    f"written {taken.written_at:%Y-%m-%d %H:%M} UTC; choose another name"
                )
            try:
                self.repository.create_tag(name, version.id)
            except icechunk.IcechunkError as error:
                if "already exists" not in str(error):
                    raise
                raise WidthlabError(
                    f"the tag {name!r} was used and deleted; an archive does not use a name "
                    "twice; choose another"
                ) from None

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def versions(self, study: str | None = None) -> list[Version]:
        """Return the versions of a study, or of all, newest first."""
        with explained("read", self.location):
            branches = self.repository.list_branches()
            asked = branches if study is None else branches & {study}
            tags: dict[str, list[str]] = {}
            for tag in sorted(self.repository.list_tags()):
                tags.setdefault(self.repository.lookup_tag(tag), []).append(tag)
            snapshots = {
                snapshot.id: snapshot
                for branch in asked
                for snapshot in self.repository.ancestry(branch=branch)
                if "study_digest" in snapshot.metadata
            }
        found = [Version.of(snapshot, tags) for snapshot in snapshots.values()]
        return sorted(found, key=lambda version: version.written_at, reverse=True)

    def newest(self, study: str) -> Version:
        """Return the newest version of a study; raises WidthlabError where it has none."""
        for version in self.versions(study):
            return version
        raise WidthlabError(
            f"the archive {self.location.address} has no version of the study {study!r} yet; a "
            "run of snakemake that finishes makes one"
        )

    def find(self, name: str) -> Version:
        """Return the version with this tag, or whose id begins so.

        Raises WidthlabError with near misses where there is none, or more than one.
        """
        versions = self.versions()
        for version in versions:
            if name in version.tags:
                return version
        matches = [v for v in versions if name and v.id.lower().startswith(name.lower())]
        if len(matches) == 1:
            return matches[0]
        if matches:
            several = ", ".join(version.id for version in matches)
            raise WidthlabError(f"{name!r} begins several versions ({several}); write more of it")
        known = [tag for version in versions for tag in version.tags]
        hint = nearest(name, known) if known else "it has no tags; 'widthlab versions' lists ids"
        raise WidthlabError(f"the archive {self.location.address} has no version {name!r}; {hint}")

    def sweeps(self, version: Version) -> dict[str, xr.Dataset]:
        """Return a version's sweeps by experiment, with their values.

        Raises WidthlabError where they are not what was committed.
        """
        return {experiment: self.sweep(version, experiment) for experiment in version.sweeps}

    def sweep(self, version: Version, experiment: str) -> xr.Dataset:
        """Return a version's sweep of one experiment; raises as `sweeps`."""
        return self._verified(version, experiment)

    def results(self, version: Version) -> xr.Dataset:
        """Return the table of a version's results (see `contents`); raises as `sweeps`."""
        return self._verified(version, RESULTS)

    def study(self, version: Version) -> Study:
        """Return the study of a version."""
        return contents.study_of(self.results(version), f"the study of version {version.id}")

    def head(self, study: str) -> tuple[Version, dict[str, Any]] | None:
        """Return the newest version of a study with its metadata, if there is one."""
        if study not in self.repository.list_branches():
            return None
        snapshot = next(iter(self.repository.ancestry(branch=study)))
        if "study_digest" not in snapshot.metadata:
            return None
        return Version.of(snapshot, {}), dict(snapshot.metadata)

    # ── parts ───────────────────────────────────────────────────────────────────────────────

    def _verified(self, version: Version, group: str) -> xr.Dataset:
        """Return a group whose content has the digest that was taken when it was committed."""
        try:
            dataset = self._group(version, group).load()
        except WidthlabError:
            raise
        except Exception as error:  # whatever a damaged store raises
            words = " ".join(str(error).split())[:300] or type(error).__name__
            raise WidthlabError(
                f"cannot read {group} of version {version.id} in the archive "
                f"{self.location.address}: {words}"
            ) from error
        if content_digest(dataset) != version.contents[group]:
            raise WidthlabError(
                f"the archive {self.location.address} is damaged: in version {version.id} "
                f"{group} differs from what was committed"
            )
        return dataset

    def _group(self, version: Version, group: str) -> xr.Dataset:
        with explained("read", self.location):
            session = self.repository.readonly_session(snapshot_id=version.id)
            dataset = xr.open_zarr(session.store, group=group, consolidated=False)
        # Icechunk lists variables in any order; on disk it is that of their names.
        ordered = dataset[sorted(dataset.data_vars)].drop_vars(list(dataset.coords))
        coordinates = {name: dataset[name] for name in sorted(dataset.coords)}
        whole: xr.Dataset = ordered.assign_coords(coordinates)
        return whole

    def _message(
        self, head: Version | None, table: xr.Dataset, sweeps: Mapping[str, Mapping[str, str]]
    ) -> str:
        """Say in a few words what changed."""
        # For words alone: an old version that is damaged must not stand in the way of a new one.
        old = _cells(self._group(head, RESULTS)) if head else {}
        new = _cells(table)
        words = []
        for name in sorted({*old, *new}):
            here, before = new.get(name, set()), old.get(name, set())
            if not before or not here:
                what = f"{len(here) or len(before)} cells"
                words.append(f"{name}, {what}" if here else f"{name} removed")
            elif here != before:
                count = f"{len(here - before)} new cells" if here - before else ""
                gone = f"{len(before - here)} gone" if before - here else ""
                words.append(", ".join(word for word in (name, count, gone) if word))
            elif head and sweeps[name]["address"] != head.sweeps[name]:
                words.append(f"{name} collected anew")
            elif head and sweeps[name]["digest"] != head.digests[name]:
                words.append(f"{name} made again, with other numbers")
        return "; ".join(words) or "the study's text"


def _check(path: Path, manifest: Manifest) -> None:
    if tree_digest(path) != manifest.digest:
        raise WidthlabError(
            f"{path} is damaged: its digest is not that of its manifest; remove its folder and "
            "run snakemake again"
        )


def _write(dataset: xr.Dataset, store: Any, group: str) -> None:
    with datasets.quiet():
        datasets.of_any_length(dataset).to_zarr(
            store, group=group, mode="w", zarr_format=3, consolidated=False
        )


def _cells(results: xr.Dataset) -> dict[str, set[str]]:
    """Return the addresses of the cells of each experiment."""
    found: dict[str, set[str]] = {}
    for line in contents.lines(results, ("stage", "experiment", "address")):
        if line["stage"] == "extract":
            found.setdefault(line["experiment"], set()).add(line["address"])
    return found
