"""The folder from which a killed run resumes.

It holds the last two states, each one file with model, optimiser and history, and the snapshots
so far. A file appears under its name only when it is whole, so a kill at any moment leaves at
least one good state. What is damaged all the same is moved aside, and named in the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widthlab.checkpoints.files import QUANTITIES, finite, read_tensors, write_tensors
from widthlab.errors import WidthlabError

CURRENT, PREVIOUS = "state.safetensors", "state-previous.safetensors"


@dataclass
class State:
    """Where a run stands after `step` steps, beside its model and optimiser."""

    step: int = 0
    history: dict[str, list[float | None]] = field(
        default_factory=lambda: {quantity: [] for quantity in QUANTITIES}
    )
    snapshots: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the snapshots so far, by file name."""


def save_state(
    folder: Path,
    identity: Mapping[str, Any],
    state: State,
    model: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
) -> None:
    """Save the state of a run, keeping the one before."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, values in optimiser.state_dict()["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{index}.{key}"] = value
    metadata = {
        "identity": dict(identity),
        "step": state.step,
        "history": finite(state.history),
        "snapshots": state.snapshots,
        "sha256": _digest(tensors),
    }
    current = folder / CURRENT
    if current.exists():
        current.replace(folder / PREVIOUS)
    write_tensors(current, tensors, metadata)


def load_state(
    folder: Path,
    identity: Mapping[str, Any],
    model: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    log: Callable[[str], None],
) -> State | None:
    """Restore the newest good state into model and optimiser and return it, or None.

    A state of another run (`identity` differs: specification, seeds, device, version of torch) is
    passed over, since going on from it would not end with the same weights.
    """
    for name in (CURRENT, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            tensors, metadata = read_tensors(path)
            if metadata["identity"] != dict(identity):
                log(f"{path} belongs to another run or device; not used")
                continue
            _check(folder, tensors, metadata)
            state = State(metadata["step"], metadata["history"], metadata["snapshots"])
        except (WidthlabError, KeyError, TypeError) as error:
            aside = path.with_name(f"{name}.damaged")
            path.replace(aside)
            log(f"{path} is damaged and was moved to {aside.name}: {error}")
            continue
        _restore(tensors, model, optimiser)
        return state
    return None


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(folder: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Raise WidthlabError unless the tensors and the snapshots are what was saved."""
    if _digest(tensors) != metadata["sha256"]:
        raise WidthlabError("its checksum does not match")
    for name, digest in metadata["snapshots"].items():
        if not (folder / name).exists() or file_digest(folder / name) != digest:
            raise WidthlabError(f"snapshot {name} is missing or damaged")


def _restore(
    tensors: Mapping[str, Tensor], model: torch.nn.Module, optimiser: torch.optim.Optimizer
) -> None:
    model.load_state_dict(
        {name.removeprefix("model."): t for name, t in tensors.items() if name[:6] == "model."}
    )
    saved = optimiser.state_dict()
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".")
            saved["state"].setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict(saved)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names and bytes of tensors."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        # Zero-dimensional tensors cannot be viewed as bytes, so make every one flat first.
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().data)
    return total.hexdigest()
