"""Many random draws of one network's parameters, and its carried signals in each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from widthlab.errors import WidthlabError

Initialise = Callable[[nn.Module, torch.Generator], None]
Seed = int | np.random.SeedSequence


def generators(seed: Seed, draws: int) -> Iterator[torch.Generator]:
    """Yield one CPU generator per draw; draw d is the same whatever the number of draws."""
    if draws < 1:
        raise WidthlabError(f"draws must be at least 1, not {draws}")
    for draw in range(draws):
        yield torch.Generator().manual_seed(nth_seed(seed, draw))


def nth_seed(seed: Seed, number: int) -> int:
    """Return the seed of draw `number`, or of a batch of draws: independent of all the others."""
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    child = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, number))
    return int(child.generate_state(1, np.uint64)[0])


def signal_names(model: nn.Module, signals: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the modules whose outputs are the carried signals h_0 … h_L.

    `signals` left out, those that the model itself names. Raises WidthlabError where there are
    none, or where one is not a module of the model.
    """
    names = tuple(getattr(model, "signals", ()) if signals is None else signals)
    if not names:
        raise WidthlabError(
            f"{type(model).__name__} does not say which modules carry its signals; give `signals`"
        )
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise WidthlabError(
                f"signal '{name}' is not a module of {type(model).__name__}; choose among its "
                "named_modules()"
            )
    return names


def beside(model: nn.Module, x: Tensor) -> Tensor:
    """Return x on the device of the model's parameters."""
    parameter = next(model.parameters(), None)
    return x if parameter is None else x.to(parameter.device)


@contextmanager
def measuring(model: nn.Module) -> Iterator[None]:
    """Put batch normalisation into training mode, everything else into evaluation mode.

    Parameters are frozen meanwhile, since only signals are differentiated. Parameters, whether
    they are trained, buffers and modes are put back after.
    """
    modes = [(module, module.training) for module in model.modules()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model.eval()
    for module, _ in modes:
        if isinstance(module, _BatchNorm):
            module.train()
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for module, training in modes:
            module.training = training
        model.load_state_dict(state)


@contextmanager
def tapped(
    model: nn.Module, names: Sequence[str], tap: Callable[[int, Tensor], Tensor | None]
) -> Iterator[None]:
    """Call `tap(layer, h)` with every carried signal as soon as a forward pass has made it.

    A tensor that it returns takes the place of the signal.
    """

    def hook(layer: int) -> Callable[[nn.Module, object, Tensor], Tensor | None]:
        def call(module: nn.Module, args: object, output: Tensor) -> Tensor | None:
            return tap(layer, output)

        return call

    modules = dict(model.named_modules())
    handles = [modules[name].register_forward_hook(hook(i)) for i, name in enumerate(names)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def runs(signals: Sequence[Tensor]) -> list[Tensor]:
    """Stack neighbouring signals (n, …) of one number of neurons N into (layers, n, N).

    Small networks are measured much faster in a few large operations than layer by layer.
    """
    found: list[list[Tensor]] = []
    for signal in signals:
        flat = signal.flatten(1)
        if found and found[-1][0].shape == flat.shape:
            found[-1].append(flat)
        else:
            found.append([flat])
    return [torch.stack(run) for run in found]


def coordinates(draws: int, layers: int, inputs: int, neurons: Sequence[int]) -> dict[str, object]:
    """Return the coordinates of statistics (draw, layer, input), with N of every layer."""
    return {
        "draw": np.arange(draws),
        "layer": np.arange(layers),
        "input": np.arange(inputs),
        "neurons": (
            "layer",
            np.array(neurons, dtype=np.int64),
            {"units": "1", "description": "N, entries of the signal of one input"},
        ),
    }


def has_batch_normalisation(model: nn.Module) -> bool:
    """Say whether any module couples the inputs of a batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def conditions(model: nn.Module, names: Sequence[str], dtype: torch.dtype) -> dict[str, object]:
    """Return the attributes that say how a dataset was measured."""
    batch = has_batch_normalisation(model)
    return {
        "engine": "dense",
        "dtype": str(dtype).removeprefix("torch."),
        "accumulation_dtype": "float64",
        "batch_normalisation": "statistics of the batch of inputs" if batch else "none",
        "signals": list(names),
    }
