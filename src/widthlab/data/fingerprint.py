"""Which image files a folder holds: names and sizes only, so that it is quick and light."""

from __future__ import annotations

import hashlib
from pathlib import Path

from widthlab.errors import WidthlabError

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
"""File name endings, in lower case, that count as images; other files are passed over."""


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """Return the sorted image files of every class folder in `folder`, by class name, sorted.

    Raises WidthlabError where the folder is missing or cannot be read.
    """
    try:
        classes = sorted(
            (entry for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."),
            key=lambda entry: entry.name,
        )
        return {entry.name: _images(entry) for entry in classes}
    except OSError as error:
        raise WidthlabError(
            f"path: {folder} is not a folder that can be read ({error.strerror}); give a folder "
            "with one folder of images per class, relative to where snakemake runs or absolute"
        ) from error


def parts(folder: Path) -> tuple[Path, Path] | None:
    """Return the training and test folders of an image folder, or None where it is not split.

    The test folder is `test`, or `val` where there is none.
    """
    train = folder / "train"
    for name in ("test", "val"):
        if train.is_dir() and (folder / name).is_dir():
            return train, folder / name
    return None


def fingerprint(path: str | Path) -> str:
    """Return the SHA-256 of the names (relative to `path`) and sizes of an image folder's files.

    The files are those that the data set `imagefolder` reads. Raises WidthlabError where the
    folder is missing.
    """
    folder = Path(path)
    both = parts(folder)
    lines: list[str] = []
    for part in both or (folder,):
        for files in class_folders(part).values():
            lines.extend(
                f"{file.relative_to(folder).as_posix()}\0{file.stat().st_size}\n" for file in files
            )
    return hashlib.sha256("".join(sorted(lines)).encode(errors="surrogateescape")).hexdigest()


def _images(folder: Path) -> list[Path]:
    found = (
        entry
        for entry in folder.iterdir()
        if entry.suffix.lower() in IMAGE_SUFFIXES and entry.name[0] != "." and entry.is_file()
    )
    return sorted(found, key=lambda entry: entry.name)
