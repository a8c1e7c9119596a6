"""Pretrained models: what a folder holds, for addresses, and downloads from the hub.

Light to import, since studies with folders are read so. Only configurations, tokenizers as JSON
and safetensors are ever read or downloaded: no pickles, and no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from widthlab.errors import WidthlabError

CONFIGURATION, TOKENIZER = "config.json", "tokenizer.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
KIND = "gpt_neox"
"""What a configuration calls models of this kind."""

WHOLE_BYTES = 2**26
"""Files up to this size are digested whole, in bytes; of larger ones, PROBES blocks."""
BLOCK_BYTES, PROBES = 2**16, 256


def tokenizer_digest(folder: str) -> str:
    """Return the SHA-256 of the tokenizer in a folder.

    Raises WidthlabError where it has none.
    """
    try:
        return hashlib.sha256((Path(folder) / TOKENIZER).read_bytes()).hexdigest()
    except OSError as error:
        raise WidthlabError(
            f"tokenizer: folder {folder} has no {TOKENIZER} that can be read ({error.strerror}); "
            "save one there with the tokenizer's save_pretrained"
        ) from error


def checkpoint_digest(folder: str, width: int, layers: int) -> str:
    """Return a digest of a pretrained model in a folder: its configuration and its weights.

    Large files are sampled, at places spread evenly over them: other training gives other numbers
    everywhere, but an edit of a few may go unnoticed. Raises WidthlabError unless the folder holds
    a GPT-NeoX model of this width and so many layers, as safetensors.
    """
    path = Path(folder)
    check_configuration(path, folder, width, layers)
    total = hashlib.sha256((path / CONFIGURATION).read_bytes())
    files = sorted(file for pattern in WEIGHTS for file in path.glob(pattern))
    if not any(file.suffix == ".safetensors" for file in files):
        raise WidthlabError(
            f"{folder} has no weights as safetensors; save them there with save_pretrained"
        )
    try:
        for file in files:
            total.update(f"{file.name}\0{file.stat().st_size}\n".encode())
            _digest_file(file, total)
    except OSError as error:
        raise WidthlabError(f"{error.filename} cannot be read ({error.strerror})") from error
    return total.hexdigest()


def check_configuration(path: Path, name: str, width: int, layers: int) -> dict[str, Any]:
    """Return the configuration in a folder; raises WidthlabError if it is not as asked for."""
    try:
        found = json.loads((path / CONFIGURATION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WidthlabError(
            f"{name} has no {CONFIGURATION} that can be read ({error}); give a folder or a name of "
            "a model as transformers saves it"
        ) from error
    if not isinstance(found, dict) or found.get("model_type") != KIND:
        kind = found.get("model_type") if isinstance(found, dict) else None
        raise WidthlabError(f"{name} is a model of kind {kind}, but pythia takes {KIND} only")
    for key, asked in (("hidden_size", width), ("num_hidden_layers", layers)):
        if found.get(key) != asked:
            raise WidthlabError(
                f"{name} has {key} {found.get(key)}, but the study says {asked}; put it under "
                "its own width, with its own layers"
            )
    return found


def _digest_file(path: Path, total: Any) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            total.update(file.read())
            return
        for probe in range(PROBES):
            file.seek((size - BLOCK_BYTES) * probe // (PROBES - 1))
            total.update(file.read(BLOCK_BYTES))


def download(name: str, revision: str, patterns: Sequence[str], folder: Path) -> Path:
    """Return the folder of a model of the hub, with the files of these patterns, downloaded once.

    Raises WidthlabError where it cannot be had.
    """
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            name, revision=revision, cache_dir=folder / "hub", allow_patterns=list(patterns)
        )
    # Besides its own errors the library lets those of its network libraries through.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise WidthlabError(
            f"{name}, revision {revision}, could not be downloaded into {folder} ({reason}); "
            "without a network, fetch it elsewhere and give the folder in place of the name"
        ) from error
    return Path(found)
