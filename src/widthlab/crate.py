"""An RO-Crate on its way into a zip: its description by rocrate, and its files."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocrate.model import ContextEntity
from rocrate.rocrate import ROCrate

from widthlab.errors import WidthlabError

VERSION = "1.1"
STORED = (".safetensors",)
"""Endings of files that do not get smaller."""
LARGE = 2**31
"""Bytes from which a member of a zip needs its 64-bit form."""


class Crate:
    """A crate as it grows. Places within it are relative; those of folders end in a slash."""

    def __init__(self) -> None:
        self._crate = ROCrate(version=VERSION, gen_preview=True)
        self._files: dict[str, bytes | Path] = {}

    def describe(self, properties: Mapping[str, Any]) -> None:
        """Set properties of the whole crate."""
        for key, value in properties.items():
            self._crate.root_dataset[key] = value

    def file(self, place: str, content: str | Path, properties: Mapping[str, Any]) -> Any:
        """Add a described file: a text, or a copy of a file."""
        stored = content if isinstance(content, Path) else content.encode()
        self._files[place] = stored
        length = stored.stat().st_size if isinstance(stored, Path) else len(stored)
        return self._crate.add_file(
            dest_path=place, properties={"contentSize": str(length), **properties}
        )

    def folder(
        self, place: str, content: Path | Mapping[str, Path], properties: Mapping[str, Any]
    ) -> Any:
        """Add a described folder: a copy of one, or files by their name in it."""
        if isinstance(content, Path):
            found = (path for path in content.rglob("*") if path.is_file())
            content = {path.relative_to(content).as_posix(): path for path in found}
        self._files.update({f"{place}{name}": path for name, path in content.items()})
        return self._crate.add_dataset(dest_path=place, properties=dict(properties))

    def context(self, identifier: str, properties: Mapping[str, Any]) -> Any:
        """Add something that is described and no file: a person, a number, a programme."""
        entity = ContextEntity(self._crate, identifier, properties=dict(properties))
        return self._crate.add(entity)

    def write(self, target: Path) -> None:
        """Write the zip, whole or not at all; the same content gives the same bytes.

        Raises WidthlabError where the file is there already.
        """
        files = dict(self._files)
        for entity in self._crate.default_entities:
            for place, text in entity.stream():
                files[place] = text
        with _new(target) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            for place in sorted(files):
                _add(archive, place, files[place])


def refuse_existing(target: Path) -> None:
    """Raise WidthlabError where a file is there already."""
    if os.path.lexists(target):
        raise WidthlabError(f"{target} is there already; give another name with --out")


def _add(archive: zipfile.ZipFile, place: str, content: bytes | Path) -> None:
    info = zipfile.ZipInfo(place)  # dated 1980, whenever it is written
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_STORED if place.endswith(STORED) else zipfile.ZIP_DEFLATED
    if isinstance(content, bytes):
        archive.writestr(info, content)
        return
    large = content.stat().st_size >= LARGE
    with content.open("rb") as stream, archive.open(info, "w", force_zip64=large) as member:
        shutil.copyfileobj(stream, member, 2**20)


@contextmanager
def _new(target: Path) -> Iterator[Path]:
    """Yield a temporary name; the file gets its own in the end, unless that is taken."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        try:
            os.link(temporary, target)  # unlike a rename, never over another file
        except FileExistsError:
            refuse_existing(target)
        except OSError:
            # A file system without links.
            refuse_existing(target)
            temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)
