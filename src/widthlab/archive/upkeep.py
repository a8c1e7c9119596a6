"""Looking after an archive: which results its versions need, and whether all of it can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from widthlab.archive import opening
from widthlab.archive.location import Location
from widthlab.archive.repository import RESULTS, Archive
from widthlab.archive.snapshot import Version
from widthlab.errors import WidthlabError
from widthlab.study import Study

Group = tuple[Version, str]
"""A part of a version: an experiment's sweep, or the table of results."""


def existing(study: Study) -> Archive | None:
    """Open a study's archive, or return None where there is none yet.

    Raises WidthlabError where it cannot be known or read: none is not the same as out of reach.
    """
    location = Location.of(study)
    repository = opening.existing(location)
    return None if repository is None else Archive(location, repository)


def needed(archive: Archive, tagged_only: bool = False) -> set[str]:
    """Return the addresses of all results that the versions, or those with a tag, were made of.

    Raises WidthlabError where a version cannot be read or a tag has lost its version.
    """
    for problem in lost_names(archive):
        raise WidthlabError(f"the archive {archive.location.address} is damaged: {problem}")
    addresses: set[str] = set()
    for version in archive.versions():
        if tagged_only and not version.tags:
            continue
        addresses.update(version.sweeps.values(), addresses_of(archive, version))
    return addresses


def addresses_of(archive: Archive, version: Version) -> list[str]:
    """Return the addresses of all results of a version; raises WidthlabError as `needed`."""
    try:
        found: list[str] = archive.results(version)["address"].values.tolist()
    except Exception as error:  # whatever a damaged store raises
        raise WidthlabError(
            f"cannot read the results of version {version.id} in the archive "
            f"{archive.location.address}: {_words(error)}"
        ) from error
    return found


def lost_names(archive: Archive) -> Iterator[str]:
    """Yield the tags and studies whose versions are out of reach, a sentence each.

    Icechunk leaves out a tag or branch whose file is damaged; in a folder the files tell.
    """
    repository = archive.repository
    known = {version.id for version in archive.versions()}
    for tag in sorted(repository.list_tags()):
        if (snapshot := repository.lookup_tag(tag)) not in known:
            yield f"the tag {tag} names {snapshot}, which is no version of any study"
    folder = archive.location.folder
    if folder is None:
        return
    for kind, names in (("tag", repository.list_tags()), ("branch", repository.list_branches())):
        for file in sorted((folder / "refs").glob(f"{kind}.*/ref.json")):
            name = file.parent.name.removeprefix(f"{kind}.")
            if name not in names and not file.with_name("ref.json.deleted").exists():
                yield f"the {kind} {name} cannot be read ({file})"


def tags_and_heads(archive: Archive) -> list[Version]:
    """Return the versions that have a tag, and the newest one of every study."""
    seen: set[str] = set()
    found = []
    for version in archive.versions():
        if version.tags or version.study not in seen:
            found.append(version)
        seen.add(version.study)
    return found


def unreadable(
    archive: Archive,
    versions: Iterable[Version],
    track: Callable[[list[Group]], Iterable[Group]] = iter,
) -> Iterator[str]:
    """Read all of these versions and yield what is damaged, a sentence each.

    What is read must have the digest that was taken when it was committed. What several versions
    share is read once.
    """
    yield from lost_names(archive)
    groups: dict[tuple[str, str], Group] = {}
    for version in versions:
        for group, digest in version.contents.items():
            groups.setdefault((group, digest), (version, group))
    for version, group in track(list(groups.values())):
        what = "the table of results" if group == RESULTS else f"the sweep of {group}"
        try:
            if group == RESULTS:
                archive.results(version)
            else:
                archive.sweep(version, group)
        except Exception as error:  # whatever a damaged store raises
            yield f"version {version.id}: {what} cannot be read: {_words(error)}"


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
