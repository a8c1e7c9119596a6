"""Insertion points: modules of a network whose outputs are watched or changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.pooling import Pooling
from widthlab.statistics.capture import evaluation_mode

Points = str | Sequence[str] | Mapping[str, Pooling]
"""Names or patterns of modules; a mapping says how each is pooled."""


def insertion_points(model: nn.Module, points: Points) -> dict[str, Pooling]:
    """Return the modules that are meant, in the model's order, with their pooling (left out: sum).

    A pattern is compared part by part, as shells compare paths: `blocks.*` are the blocks and not
    what is in them. Where several patterns name a module the first counts. Raises WidthlabError
    for a name or a pattern without a module, with the nearest ones.
    """
    if isinstance(points, str):
        points = [points]
    wanted = points if isinstance(points, Mapping) else dict.fromkeys(points, Pooling())
    if not wanted:
        raise WidthlabError("name at least one insertion point, a module or a pattern")
    modules = [name for name, _ in model.named_modules() if name]
    found: dict[str, Pooling] = {}
    for pattern, pooling in wanted.items():
        matches = [name for name in modules if _matches(name, pattern)]
        if not matches:
            near = get_close_matches(pattern, modules, n=3, cutoff=0.3) or modules[:3]
            raise WidthlabError(
                f"insertion point '{pattern}' is not a module of {type(model).__name__}; the "
                f"nearest are {', '.join(near) or 'none, since it has no modules'}"
            )
        for name in matches:
            found.setdefault(name, pooling)
    return {name: found[name] for name in modules if name in found}


def first_tensor(name: str, output: Any) -> Tensor:
    """Return the activation in a module's output.

    That is the output itself, the first entry of a tuple, or the first tensor of a dataclass, as
    modules of `transformers` return them, other than its `loss`. Raises WidthlabError for anything
    else, and where it can have no gradient.
    """
    key = _field(output)
    if key is not None:
        tensor = getattr(output, key)
    else:
        tensor = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(tensor, Tensor):
        raise WidthlabError(
            f"insertion point '{name}' returns a {type(output).__name__} whose first entry is no "
            "tensor; choose a module that returns a tensor, or a tuple or dataclass that begins "
            "with one, such as a submodule of it"
        )
    if not tensor.is_floating_point():
        raise WidthlabError(
            f"insertion point '{name}' returns {tensor.dtype} numbers, which have no gradient; "
            "choose a module behind it"
        )
    return tensor


def with_first(output: Any, tensor: Tensor) -> Any:
    """Return a module's output with its activation replaced."""
    if isinstance(output, Tensor):
        return tensor
    key = _field(output)
    if key is not None:
        return replace(output, **{key: tensor})
    if isinstance(output, list):
        return [tensor, *output[1:]]
    rest = output[1:]
    return output._replace(**{output._fields[0]: tensor}) if _named(output) else (tensor, *rest)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode and freeze its parameters, and undo both after."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with evaluation_mode(model), torch.inference_mode(False):
        for parameter in trained:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)


def batch_beside(model: nn.Module, batch: Any) -> Any:
    """Return a batch (tensors in tuples, lists and mappings) on the device of the parameters."""
    parameter = next(model.parameters(), None)
    return batch if parameter is None else _moved(batch, parameter.device)


def _moved(batch: Any, device: torch.device) -> Any:
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [_moved(value, device) for value in batch]
        return parts if isinstance(batch, list) else tuple(parts)
    return batch


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _field(output: Any) -> str | None:
    """Return the name of a dataclass's first tensor that is not its loss."""
    if not is_dataclass(output):
        return None
    names = [field.name for field in fields(output) if field.init and field.name != "loss"]
    return next((name for name in names if isinstance(getattr(output, name), Tensor)), None)


def _named(output: Any) -> bool:
    return hasattr(output, "_fields") and hasattr(output, "_replace")
