"""What every network offers: its carried signals, redrawing, and learning-rate factors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from widthlab.models.layers import Dense, fill_normal


class Model(nn.Module):
    """A network f: (n, *input_shape) → (n, outputs), or (n, T) → (n, T, outputs) for sequences.

    `signals` names the submodules whose outputs are the carried signals h_0 … h_L, in order.
    `width_ratio` is width / specs.BASE_WIDTH for muP networks and 1 for all others.
    """

    signals: tuple[str, ...] = ()
    width_ratio: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs f(x); every network has its own."""
        raise NotImplementedError

    def redraw(self, generator: torch.Generator) -> None:
        """Draw all parameters anew in place."""
        initialise(self, generator)

    def learning_rate_factors(self, optimiser: str = "sgd") -> dict[str, float]:
        """Return the factor on the base learning rate of every parameter, by its name.

        All 1, except under muP: dense layers follow table 3 of Tensor Programs V, and the scales
        and shifts of normalisations go with the biases there.
        """
        factors: dict[str, float] = {}
        for name, module in self.named_modules():
            if isinstance(module, Dense):
                own = module.learning_rate_factors(optimiser)
            else:
                factor = 1.0 if optimiser == "adam" else self.width_ratio
                own = {key: factor for key, _ in module.named_parameters(recurse=False)}
            prefix = f"{name}." if name else ""
            factors.update({prefix + key: factor for key, factor in own.items()})
        return factors


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Redraw all parameters of `model` in place, and reset the statistics of normalisations.

    Modules are drawn in the order in which they are registered. A CPU generator gives the same
    weights on every device. Convolutions are He normal with fan-out, Var = 2 / (k²·channels out):
    equation 14 of He et al. (2015), Delving deep into rectifiers, whose authors find either fan
    sufficient.
    """
    for module in model.modules():
        if isinstance(module, Dense):
            module.redraw(generator)
        elif isinstance(module, nn.Conv2d):
            fan_out = module.weight[:, 0].numel()
            fill_normal(module.weight, (2.0 / fan_out) ** 0.5, generator)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm):
            module.reset_parameters()
        elif any(True for _ in module.parameters(recurse=False)):
            raise TypeError(f"no initialisation is known for {type(module).__name__}")
