"""Models and weights as the shell names them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from widthlab.errors import WidthlabError

Kind = Literal["images", "text"]
NESTED = ("state_dict", "model_state_dict", "model")
"""Where training scripts keep the weights in what they save."""
SHORT = (LookupError, ArithmeticError, AssertionError, SystemExit)
"""Errors whose text is a key or a number more often than a sentence."""
SHOWN = 3
"""Names of tensors that a message lists."""


def model_of(name: str, kind: Kind, seed: int = 0) -> nn.Module:
    """Return the network `name`: a folder of transformers, or what `package.module:factory` makes.

    The factory is called without arguments, with torch's random numbers seeded; modules are found
    from the current folder too. A folder is read by transformers' classes alone (no code in it is
    run), in float32: as a causal language model for text, as a classifier for images. Raises
    WidthlabError where there is no such model.
    """
    if Path(name).is_dir():
        return _pretrained(Path(name), kind)
    module, _, path = name.partition(":")
    if not module or not path:
        raise WidthlabError(
            f"--model: {name} is no folder of a transformers model; name one, or a factory as "
            "package.module:factory"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        factory: Any = importlib.import_module(module)
        for part in path.split("."):
            factory = getattr(factory, part)
    except (Exception, SystemExit) as error:  # whatever its own code raises
        raise WidthlabError(f"--model: {name} cannot be imported: {first_line(error)}") from error
    if not callable(factory):
        raise WidthlabError(f"--model: {name} is no function, but a {type(factory).__name__}")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model = factory()
        except (Exception, SystemExit) as error:
            raise WidthlabError(
                f"--model: {name} failed when it was called without arguments: {first_line(error)}"
            ) from error
    if not isinstance(model, nn.Module):
        raise WidthlabError(
            f"--model: {name} returns a {type(model).__name__}; it must return a torch.nn.Module"
        )
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint into a model: safetensors, or what torch loads as weights only.

    Weights may be nested under one of `NESTED`, and named as in a DataParallel model. Raises
    WidthlabError for a file that is damaged or holds other objects than tensors, which would run
    code when it is loaded, and where names or shapes are not those of the model.
    """
    state = _state(path)
    wanted = model.state_dict()
    # Tied tensors are saved once.
    known = {wanted[name].data_ptr() for name in state if name in wanted}
    missing = [
        name
        for name, tensor in wanted.items()
        if name not in state and (tensor.numel() == 0 or tensor.data_ptr() not in known)
    ]
    for what, names in (
        ("lacks", missing),
        ("has, beside the model's, the tensors", [name for name in state if name not in wanted]),
    ):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise WidthlabError(
                f"--checkpoint: {path} {what} {', '.join(names[:SHOWN])}{more}; it is of another "
                "model"
            )
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            raise WidthlabError(
                f"--checkpoint: {name} has the shape {tuple(tensor.shape)} in {path}, but "
                f"{tuple(wanted[name].shape)} in the model; it is of another model"
            )
    model.load_state_dict(state, strict=False)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, with its type where it says little without."""
    name = type(error).__name__
    lines = str(error).strip().splitlines()
    if not lines:
        return name
    return f"{name}: {lines[0]}" if isinstance(error, SHORT) else lines[0]


def _state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WidthlabError(f"--checkpoint: {path} is not a file")
    if path.suffix == ".safetensors":
        try:
            return safetensors.torch.load_file(path)
        except (SafetensorError, OSError) as error:
            raise WidthlabError(f"--checkpoint: {path} is damaged: {first_line(error)}") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the bytes of another file do to the reader
        raise WidthlabError(
            f"--checkpoint: {path} is damaged, or no file of torch, or holds other objects than "
            "tensors, which would run code when they are loaded; save model.state_dict() by "
            "safetensors.torch.save_file"
        ) from error
    while isinstance(found, Mapping):
        inner = next((found[key] for key in NESTED if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = inner
    if not isinstance(found, Mapping) or not all(isinstance(t, Tensor) for t in found.values()):
        raise WidthlabError(
            f"--checkpoint: {path} does not hold the tensors of a model by name; save "
            "model.state_dict()"
        )
    prefix = "module."
    wrapped = bool(found) and all(str(name).startswith(prefix) for name in found)
    return {str(name)[len(prefix) * wrapped :]: tensor for name, tensor in found.items()}


def _pretrained(folder: Path, kind: Kind) -> nn.Module:
    # Nothing is fetched, whatever the folder names.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    classes = {
        "images": transformers.AutoModelForImageClassification,
        "text": transformers.AutoModelForCausalLM,
    }
    try:
        model: nn.Module = classes[kind].from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise WidthlabError(
            f"--model: {folder} cannot be read as a model of transformers for {kind}: "
            f"{first_line(error)}"
        ) from error
    return model
