"""One version of a study: what the metadata of its commit say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icechunk import SnapshotInfo


@dataclass(frozen=True)
class Version:
    """One commit of a study's sweeps."""

    id: str
    study: str
    tags: tuple[str, ...]
    written_at: datetime
    study_digest: str
    git_commit: str | None
    message: str
    """What changed against the version before, in a few words."""
    sweeps: Mapping[str, str]
    """Address of each experiment's sweep."""
    digests: Mapping[str, str]
    """SHA-256 of each experiment's sweep, as it was on disk."""
    contents: Mapping[str, str]
    """Digest of the content of each group (see `digests`), to verify the archive by."""
    git_dirty: bool | None = None
    """Whether the code differed from the git commit."""

    @classmethod
    def of(cls, snapshot: SnapshotInfo, tags: Mapping[str, Sequence[str]]) -> Version:
        """Return the version that a snapshot is, given the tags of all snapshots by their id."""
        metadata = snapshot.metadata
        return cls(
            id=snapshot.id,
            study=metadata["study"],
            tags=tuple(tags.get(snapshot.id, ())),
            written_at=snapshot.written_at,
            study_digest=metadata["study_digest"],
            git_commit=metadata["git_commit"],
            message=snapshot.message,
            sweeps={name: sweep["address"] for name, sweep in metadata["sweeps"].items()},
            digests={name: sweep["digest"] for name, sweep in metadata["sweeps"].items()},
            contents=metadata["contents"],
            git_dirty=metadata["git_dirty"],
        )
