"""The residual perceptron, with one- or two-layer branches."""

from __future__ import annotations

from torch import Tensor, nn

from widthlab import specs
from widthlab.models.layers import Activate, Dense, normaliser
from widthlab.models.model import Model
from widthlab.specs import BASE_WIDTH


class Block(nn.Module):
    """One residual block on the stream h (n, D).

    With the normalised entrance n = norm(h), the branch F is V s(U n + b_u) + b_v (two_layer,
    either position), W s(n) + b (one_layer, pre) or W n + b (one_layer, post). The block returns
    h + α F in position pre and s(h + α F) in position post.
    """

    def __init__(self, spec: specs.ResidualMLP, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        two_layer, post = spec.branch == "two_layer", spec.position == "post"
        hidden = spec.hidden_width(width) if two_layer else width
        base_hidden = spec.hidden_width(BASE_WIDTH) if two_layer else BASE_WIDTH
        self.norm = normaliser(spec.normalisation, width)
        self.inner = (
            Dense(
                width,
                hidden,
                weight_variance=spec.inner_variance,
                bias_variance=spec.bias_variance or 0.0,
                bias=bool(spec.bias),
                parameterisation=spec.parameterisation,
                base_inputs=BASE_WIDTH,
                base_outputs=base_hidden,
            )
            if two_layer
            else nn.Identity()
        )
        self.activation = Activate("linear" if post and not two_layer else spec.activation)
        self.outer = Dense(
            hidden,
            width,
            weight_variance=spec.weight_variance or 0.0,
            bias_variance=spec.bias_variance or 0.0,
            bias=bool(spec.bias),
            parameterisation=spec.parameterisation,
            base_inputs=base_hidden,
            base_outputs=BASE_WIDTH,
        )
        self.after = Activate(spec.activation if post else "linear")

    def forward(self, h: Tensor) -> Tensor:
        """Return the next state of the stream (n, D)."""
        branch = self.outer(self.activation(self.inner(self.norm(h))))
        out: Tensor = self.after(h + self.scale * branch)
        return out


class ResidualMLP(Model):
    """h_0 = W_E x, h_l the stream after block l = 1 … depth, and f = W_out h_L.

    The embedding has variance 1 / fan-in, so that q_0 = |x|²/d on average; the readout 1 / width
    (64 / width² under muP); neither has a bias. Inputs of any shape are flattened.
    """

    def __init__(
        self, spec: specs.ResidualMLP, width: int, depth: int, inputs: int, outputs: int
    ) -> None:
        super().__init__()
        scale = spec.branch_scale(depth)
        self.flatten = nn.Flatten()
        self.embedding = Dense(
            inputs, width, parameterisation=spec.parameterisation, base_outputs=BASE_WIDTH
        )
        self.blocks = nn.ModuleList(Block(spec, width, scale) for _ in range(depth))
        self.readout = Dense(
            width, outputs, parameterisation=spec.parameterisation, base_inputs=BASE_WIDTH
        )
        self.signals = ("embedding", *(f"blocks.{block}" for block in range(depth)))
        self.width_ratio = width / BASE_WIDTH if spec.parameterisation == "mup" else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs (n, *input_shape) to outputs (n, outputs)."""
        h = self.embedding(self.flatten(x))
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.readout(h)
        return out
