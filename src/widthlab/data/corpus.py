"""Texts: a file of one's own, or the one that comes with Python; light, for studies are read so."""

from __future__ import annotations

import hashlib
from pathlib import Path

from widthlab.errors import WidthlabError


def read_text(path: str | None) -> bytes:
    """Return a text in UTF-8, that of a file, or the embedded corpus where there is no path.

    Raises WidthlabError where the file cannot be read, is empty, or is not UTF-8.
    """
    if path is None:
        return embedded_corpus().encode()
    try:
        text = Path(path).read_bytes()
        text.decode("utf-8")
    except OSError as error:
        raise WidthlabError(
            f"path: {path} is not a file that can be read ({error.strerror}); give a text file, "
            "relative to where snakemake runs or absolute, or leave path out for the embedded text"
        ) from error
    except UnicodeDecodeError as error:
        raise WidthlabError(
            f"path: {path} is not text in UTF-8 (byte {error.start} is {text[error.start]:#04x}); "
            "convert it first"
        ) from error
    if not text:
        raise WidthlabError(f"path: {path} is empty; give a text file")
    return text


def text_digest(text: bytes) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text).hexdigest()


def embedded_corpus() -> str:
    """Return the reference of the Python language that Python carries for `help`: English prose.

    Its topics are in alphabetical order. Many share paragraphs; each is kept once, so that none
    is in both parts of a split. The text differs between versions of Python.
    """
    from pydoc_data.topics import topics

    paragraphs: dict[str, None] = {}
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            paragraphs.setdefault(paragraph.strip("\n"))
    return "\n\n".join(paragraphs) + "\n"
