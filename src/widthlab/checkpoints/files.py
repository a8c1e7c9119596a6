"""The files of a checkpoint: snapshots of the weights along training, and its history."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from widthlab import specs
from widthlab.errors import WidthlabError
from widthlab.models import Model, build
from widthlab.models.language import Pythia

HISTORY = "history.json"
QUANTITIES = (
    "step",
    "train_loss",
    "test_loss",
    "train_accuracy",
    "test_accuracy",
    "learning_rate",
)
"""What a history holds for each snapshot."""
METADATA_KEY = "widthlab"


def snapshot_path(folder: Path, step: int) -> Path:
    """Return the path of the snapshot after `step` steps in a checkpoint's folder."""
    return folder / f"step-{step:07d}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write named tensors and JSON metadata to one safetensors file, whole or not at all."""
    temporary = path.with_name(f"{path.name}.part")
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # One metadata key only: safetensors writes several in random order.
    save_file(stored, temporary, {METADATA_KEY: json.dumps(metadata, sort_keys=True)})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `write_tensors` wrote; raises WidthlabError where the file is damaged.

    Tensors are copies, aligned like any other of torch's, and not views of the file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads(file.metadata()[METADATA_KEY])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise WidthlabError(
            f"{path} is missing or damaged ({error}); remove its folder and train again"
        ) from error
    return tensors, metadata


def load_snapshot(folder: Path, step: int) -> dict[str, Tensor]:
    """Return the state (parameters and buffers by name, on the CPU) after `step` steps.

    Raises WidthlabError where there is no such snapshot or it is damaged.
    """
    return read_tensors(snapshot_path(folder, step))[0]


def load_model(
    folder: Path,
    step: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> Model:
    """Return the network as it was after `step` steps, in evaluation mode.

    Numbers are in `dtype`; left out, float32 (for pretrained checkpoints, what their specification
    says). Everything needed is in the snapshot. Raises WidthlabError as `load_snapshot`.
    """
    state, metadata = read_tensors(snapshot_path(folder, step))
    if "configuration" in metadata:
        dtype = dtype or getattr(torch, metadata["dtype"])
        # Not the whole network: its rotations are in float32 always.
        state = {name: state.pop(name).to(dtype) for name in list(state)}
        return Pythia.of(metadata["configuration"], state).to(device).eval()
    dtype = dtype or torch.float32
    network = specs.Network.model_validate(metadata["network"])
    model = build(network, tuple(metadata["input_shape"]), metadata["outputs"], seed=0)
    model.load_state_dict(state)
    return model.to(device=device, dtype=dtype).eval()


def load_history(folder: Path) -> dict[str, Any]:
    """Return the history of a checkpoint, with NaN where a value was not finite.

    It holds `status` (finished or diverged), `diverged_step`, and one list per quantity with an
    entry for each snapshot: `step`, `train_loss`, `test_loss`, `train_accuracy`, `test_accuracy`
    (shares of 1), and `learning_rate` (base rate of the next step). Raises WidthlabError where
    the file is missing or damaged.
    """
    path = folder / HISTORY
    try:
        history: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WidthlabError(
            f"{path} is missing or damaged ({error}); remove its folder and train again"
        ) from error
    return {
        key: [math.nan if item is None else item for item in value]
        if isinstance(value, list)
        else value
        for key, value in history.items()
    }


def write_history(folder: Path, history: Mapping[str, Any]) -> None:
    """Write a history as JSON in which a value that is not finite is null."""
    temporary = folder / f"{HISTORY}.part"
    text = json.dumps(finite(history), sort_keys=True, indent=1, allow_nan=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(folder / HISTORY)


def finite(history: Mapping[str, Any]) -> dict[str, Any]:
    """Return a history with None for every number in its lists that is not finite."""
    return {
        key: [item if item is None or math.isfinite(item) else None for item in value]
        if isinstance(value, list)
        else value
        for key, value in history.items()
    }
