"""The multilayer perceptron."""

from __future__ import annotations

from torch import Tensor, nn

from widthlab import specs
from widthlab.models.layers import Activate, Dense, normaliser
from widthlab.models.model import Model
from widthlab.specs import BASE_WIDTH


class Hidden(nn.Module):
    """One hidden layer h → s(norm(W h + b)), from (n, inputs) to (n, width)."""

    def __init__(self, spec: specs.MLP, inputs: int, width: int, base_inputs: int | None) -> None:
        super().__init__()
        self.dense = Dense(
            inputs,
            width,
            weight_variance=spec.weight_variance or 0.0,
            bias_variance=spec.bias_variance or 0.0,
            bias=bool(spec.bias),
            parameterisation=spec.parameterisation,
            base_inputs=base_inputs,
            base_outputs=BASE_WIDTH,
        )
        self.norm = normaliser(spec.normalisation, width)
        self.activation = Activate(spec.activation)

    def forward(self, h: Tensor) -> Tensor:
        """Return the post-activations (n, width)."""
        out: Tensor = self.activation(self.norm(self.dense(h)))
        return out


class MLP(Model):
    """h_0 = x, h_l = s(norm(W_l h_{l-1} + b_l)) for l = 1 … depth, and f = W_out h_L.

    Weights have variance C_W / fan-in, those of the first layer too; the readout has variance
    1 / width (64 / width² under muP) and no bias. Inputs of any shape are flattened.
    """

    def __init__(self, spec: specs.MLP, width: int, depth: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.layers = nn.ModuleList(
            Hidden(spec, inputs, width, None)
            if layer == 0
            else Hidden(spec, width, width, BASE_WIDTH)
            for layer in range(depth)
        )
        self.readout = Dense(
            width, outputs, parameterisation=spec.parameterisation, base_inputs=BASE_WIDTH
        )
        self.signals = ("flatten", *(f"layers.{layer}" for layer in range(depth)))
        self.width_ratio = width / BASE_WIDTH if spec.parameterisation == "mup" else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs (n, *input_shape) to outputs (n, outputs)."""
        h = self.flatten(x)
        for layer in self.layers:
            h = layer(h)
        out: Tensor = self.readout(h)
        return out
