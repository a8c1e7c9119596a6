"""Pretrained checkpoints: from the hub or from a folder to a checkpoint's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from widthlab import specs
from widthlab.checkpoints.files import QUANTITIES, snapshot_path, write_history, write_tensors
from widthlab.data.pretrained import (
    CONFIGURATION,
    WEIGHTS,
    check_configuration,
    checkpoint_digest,
    download,
)
from widthlab.errors import WidthlabError


def fetch(
    checkpoint: specs.Checkpoint, downloads: Path, out: Path, log: Callable[[str], None]
) -> None:
    """Write a pretrained network to `out` as a checkpoint of one snapshot, after 0 steps.

    Weights keep the precision that they come in. `downloads` is where what comes from the hub is
    kept. Raises WidthlabError where it cannot be had, has changed since the study was read, or is
    not a GPT-NeoX model of the right size with all its weights as safetensors.
    """
    network = checkpoint.network
    family = network.architecture
    assert isinstance(family, specs.Pythia)
    name, expected = family.checkpoints[network.width], family.fingerprints.get(network.width)
    if expected is None:
        folder = download(name, family.revision, [CONFIGURATION, *WEIGHTS], downloads)
        log(f"{name}, revision {family.revision}, commit {folder.name}")
    else:
        folder = Path(name)
        if checkpoint_digest(name, network.width, network.depth) != expected:
            raise WidthlabError(
                f"{name} has changed since the study was read; run the same command again to use "
                "it as it is now"
            )
    configuration = check_configuration(folder, name, network.width, network.depth)
    state = _weights(folder, name)
    metadata = {
        "configuration": configuration,
        "dtype": family.dtype,
        "source": [name, family.revision, folder.name] if expected is None else expected,
    }
    write_tensors(snapshot_path(out, 0), state, metadata)
    history: dict[str, Any] = {quantity: [None] for quantity in QUANTITIES}
    write_history(out, {"status": "finished", "diverged_step": None, **history, "step": [0]})
    log(f"{name}: {sum(tensor.numel() for tensor in state.values())} parameters")


def _weights(folder: Path, name: str) -> dict[str, Any]:
    """Return all tensors of the model in a folder, each with memory of its own, as they come."""
    from transformers import GPTNeoXForCausalLM
    from transformers.utils import logging

    if not any(folder.glob("*.safetensors")):
        raise WidthlabError(
            f"{name} has no weights as safetensors; choose a revision that has, or save them as "
            "such to a folder with save_pretrained and give that"
        )
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = GPTNeoXForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype="auto",
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise WidthlabError(f"{name} cannot be loaded ({reason}); give another model") from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    model, found = loaded
    missing = [*found["missing_keys"], *found["mismatched_keys"]]
    if missing:
        raise WidthlabError(
            f"{name} lacks the weights {missing[0]} and {len(missing) - 1} more; give another model"
        )
    state: dict[str, Any] = model.state_dict()
    seen: set[int] = set()
    for key, tensor in state.items():
        # A readout that is the embedding's own matrix.
        if tensor.data_ptr() in seen:
            state[key] = tensor.clone()
        seen.add(tensor.data_ptr())
    return state
