"""Any folder of class folders of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from widthlab import specs
from widthlab.data.fingerprint import class_folders, fingerprint, parts
from widthlab.data.prepared import Prepared, assemble
from widthlab.data.splits import Indices, balanced_order, split, take
from widthlab.errors import WidthlabError


def prepare_imagefolder(spec: specs.ImageFolder) -> Prepared:
    """Return the images of a folder as RGB squares (n, 3, size, size).

    The folder holds one folder per class, and is split by `test_fraction`; or it holds `train`
    and `test` (or `val`) of such. Indices count the images in the order of class names, then
    file names, in each part that is on disk. Only the images that are asked for are opened.
    Raises WidthlabError for a missing or changed folder, fewer than two classes, an empty class,
    classes that differ between the parts, or an image that cannot be read.
    """
    folder = Path(spec.path)
    both = parts(folder)
    files, labels, classes = _listing(both[0] if both else folder)
    if spec.fingerprint is not None and fingerprint(folder) != spec.fingerprint:
        raise WidthlabError(
            f"path: the images in {folder} have changed since the study was read; run the same "
            "command again to use them as they are now"
        )
    if both:
        test_files, test_labels, test_classes = _listing(both[1])
        _same_classes(classes, test_classes, both)
        streams = np.random.SeedSequence(spec.split_seed).spawn(2)
        train = balanced_order(labels, streams[0])
        test = balanced_order(test_labels, streams[1])
    else:
        test_files, test_labels = files, labels
        train, test = split(labels, spec.test_fraction, spec.split_seed, spec.name)
    train = take(train, spec.train_samples, "train_samples", f"{spec.name} {folder}")
    test = take(test, spec.test_samples, "test_samples", f"{spec.name} {folder}")
    return assemble(
        f"{spec.name} {folder}",
        (_images([files[index] for index in train], spec.size), labels[train], train),
        (_images([test_files[index] for index in test], spec.size), test_labels[test], test),
        classes,
    )


def _listing(folder: Path) -> tuple[list[Path], Indices, tuple[str, ...]]:
    """Return all image files of a folder, their labels, and the names of the classes."""
    by_class = class_folders(folder)
    if len(by_class) < 2:
        raise WidthlabError(
            f"path: {folder} holds {len(by_class)} class folders, and at least two are needed; "
            "make one folder of images per class, or `train` and `test` folders of such"
        )
    for name, found in by_class.items():
        if not found:
            raise WidthlabError(
                f"path: class folder {folder / name} holds no images; add some, directly in it, "
                "or remove the folder"
            )
    files = [file for found in by_class.values() for file in found]
    counts = [len(found) for found in by_class.values()]
    return files, np.repeat(np.arange(len(counts), dtype=np.int64), counts), tuple(by_class)


def _same_classes(
    train: tuple[str, ...], test: tuple[str, ...], folders: tuple[Path, Path]
) -> None:
    differing = sorted(set(train) ^ set(test))
    if differing:
        raise WidthlabError(
            f"path: {folders[0]} and {folders[1]} must hold the same class folders, but these are "
            f"in one only: {', '.join(differing)}"
        )


def _images(files: list[Path], size: int) -> npt.NDArray[np.uint8]:
    """Read images as RGB, each cropped to its centre square and resized, (n, 3, size, size)."""
    images = np.empty((len(files), 3, size, size), dtype=np.uint8)
    for row, file in enumerate(files):
        try:
            with Image.open(file) as image:
                square = ImageOps.fit(
                    image.convert("RGB"), (size, size), method=Image.Resampling.BICUBIC
                )
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise WidthlabError(
                f"path: image {file} cannot be read ({error}); repair or remove it"
            ) from error
        images[row] = np.asarray(square).transpose(2, 0, 1)
    return images
