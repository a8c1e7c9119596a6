"""The typed building blocks of a study: networks, data sets, training runs, checkpoints.

A leaf of the package (no torch): models, data and training take these types, and addresses
are hashes of their canonical JSON. Every field's docstring is its description in the JSON
schema.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from widthlab.errors import WidthlabError
from widthlab.specs_base import REAL as REAL
from widthlab.specs_base import WHOLE as WHOLE
from widthlab.specs_base import Count as Count
from widthlab.specs_base import Data as Data
from widthlab.specs_base import Fraction as Fraction
from widthlab.specs_base import NonNegative as NonNegative
from widthlab.specs_base import Positive as Positive
from widthlab.specs_base import Seed as Seed
from widthlab.specs_base import Spec as Spec
from widthlab.specs_base import Unit as Unit
from widthlab.specs_base import nearest as nearest
from widthlab.specs_language import Llama as Llama
from widthlab.specs_language import Pythia as Pythia
from widthlab.specs_language import TextFile as TextFile
from widthlab.theory.criticality import CRITICAL

Activation = Literal["linear", "relu", "leaky_relu", "tanh", "erf", "gelu", "silu"]
Parameterisation = Literal["standard", "ntk", "mup"]


# ── networks ────────────────────────────────────────────────────────────────────────────────


class MLP(Spec):
    """A multilayer perceptron: h_l = s(W_l h_{l-1} + b_l), readout f = W_out h_L."""

    name: Literal["mlp"] = "mlp"
    activation: Activation = "relu"
    """Activation function s."""
    weight_variance: Annotated[Positive | None, Unit("1")] = None
    """C_W, so that Var W_ij = C_W / fan-in; left out, the critical value of the activation."""
    bias_variance: Annotated[NonNegative | None, Unit("1")] = None
    """C_b = Var b_i; left out, the critical value of the activation."""
    bias: bool | None = None
    """Whether layers have biases; left out, only where bias_variance is positive."""
    normalisation: Literal["none", "layer", "batch"] = "none"
    """Normalisation of the pre-activations."""
    parameterisation: Parameterisation = "standard"
    """How width enters initialisation and learning rates (standard, NTK, or muP)."""

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, values: Any) -> Any:
        return _resolve_variances(values, critical=True)


class ResidualMLP(Spec):
    """A residual perceptron of embedding width D: h_l = h_{l-1} + α F(h_{l-1}).

    The branch F is V s(U h) with hidden width M (two_layer) or W s(h) (one_layer). With
    position `post` the nonlinearity comes after the addition: h_l = s(h_{l-1} + α F(h_{l-1})),
    where F is linear for one_layer branches.
    """

    name: Literal["residual_mlp"] = "residual_mlp"
    activation: Activation = "relu"
    """Activation function s."""
    branch: Literal["one_layer", "two_layer"] = "two_layer"
    """Form of the residual branch F."""
    position: Literal["pre", "post"] = "pre"
    """Nonlinearity before the branch's weights (pre) or after the addition (post)."""
    hidden_ratio: Annotated[Positive, Unit("1")] = 1.0
    """M / D, the hidden width of a two-layer branch over the embedding width."""
    residual_scale: Annotated[NonNegative, Unit("1")] = 1.0
    """α at depth 1 (dimensionless)."""
    depth_exponent: Annotated[NonNegative, Unit("1")] = 0.0
    """p in α_L = residual_scale · L^-p, the scaling of the branch with depth."""
    weight_variance: Annotated[Positive | None, Unit("1")] = None
    """C_W of the branch's last weights (σ_v² of two_layer); left out, 1."""
    inner_variance: Annotated[Positive, Unit("1")] = 1.0
    """σ_u² of the first weights of a two_layer branch; not used by one_layer."""
    bias_variance: Annotated[NonNegative | None, Unit("1")] = None
    """C_b of the branch's biases; left out, 0."""
    bias: bool | None = None
    """Whether branches have biases; left out, only where bias_variance is positive."""
    normalisation: Literal["none", "layer", "batch"] = "none"
    """Normalisation at the entrance of every branch."""
    parameterisation: Parameterisation = "standard"
    """How width enters initialisation and learning rates (standard, NTK, or muP)."""

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, values: Any) -> Any:
        return _resolve_variances(values, critical=False)

    @model_validator(mode="after")
    def _branch(self) -> ResidualMLP:
        if self.branch == "one_layer" and (self.hidden_ratio != 1 or self.inner_variance != 1):
            raise ValueError("hidden_ratio and inner_variance belong to two_layer branches")
        return self

    def hidden_width(self, width: int) -> int:
        """M, the hidden width of a two-layer branch at embedding width `width`."""
        return max(1, round(self.hidden_ratio * width))

    def branch_scale(self, depth: int) -> float:
        """α_L, the factor on every branch of a network of `depth` blocks."""
        scale: float = self.residual_scale * float(depth) ** -self.depth_exponent
        return scale


SMALLEST_IMAGE = 8
"""Smallest side of an image, in pixels, that resnet20 takes."""


class ResNet20(Spec):
    """The 20-layer CIFAR residual network of He et al. (2015), option A shortcuts.

    Width is the number of channels of the first stage (16 in the paper); the later stages have
    two and four times as many.
    """

    name: Literal["resnet20"] = "resnet20"


BASE_WIDTH = 64
"""Width at which the muP parameterisation equals the standard one (factors of 1)."""

Perceptron = Annotated[MLP | ResidualMLP, Field(discriminator="name")]
Classifier = Annotated[MLP | ResidualMLP | ResNet20, Field(discriminator="name")]
Architecture = Annotated[MLP | ResidualMLP | ResNet20 | Llama | Pythia, Field(discriminator="name")]


def _resolve_variances(values: Any, *, critical: bool) -> Any:
    """Write out the defaults that depend on the activation, so that an address holds them."""
    if not isinstance(values, dict):
        return values
    values = dict(values)
    activation = values.get("activation", "relu")
    if not isinstance(activation, str):
        return values
    c_w, c_b = CRITICAL.get(activation, (1.0, 0.0)) if critical else (1.0, 0.0)
    if values.get("weight_variance") is None:
        values["weight_variance"] = c_w
    if values.get("bias_variance") is None:
        values["bias_variance"] = 0.0 if values.get("bias") is False else c_b
    if values.get("bias") is None:
        values["bias"] = values["bias_variance"] not in (0, 0.0)
    if values["bias"] is False and values["bias_variance"] not in (0, 0.0):
        raise ValueError("bias is false, so bias_variance must be 0 or left out")
    return values


class Network(Spec):
    """One network: an architecture at a width and a depth."""

    architecture: Architecture
    width: Annotated[Count, Unit("neurons")]
    """N: neurons of a hidden layer, channels of the first stage, or numbers in a token's stream."""
    depth: Annotated[Count, Unit("layers")]
    """L: hidden layers (mlp), residual blocks (residual_mlp), 20 (resnet20), decoder layers."""

    @model_validator(mode="after")
    def _possible(self) -> Network:
        if isinstance(self.architecture, ResNet20) and self.depth != 20:
            raise ValueError("depth of resnet20 is 20; leave it out or write 20")
        if isinstance(self.architecture, Pythia) and self.depth != self.architecture.layers:
            raise ValueError(f"depth of these checkpoints is {self.architecture.layers}")
        if isinstance(self.architecture, Llama | Pythia):
            problem = self.architecture.misfit(self.width)
            if problem:
                raise ValueError(problem)
        return self


# ── data ────────────────────────────────────────────────────────────────────────────────────


class Digits(Data):
    """The 1,797 real 8×8 grey digits that scikit-learn carries (Alpaydin & Kaynak 1998)."""

    name: Literal["digits"] = "digits"
    test_fraction: Annotated[Fraction, Unit("1")] = 0.2
    """Share of samples held out for testing."""

    def _whole(self) -> tuple[float, float]:
        return ceil(1797 * (1 - self.test_fraction)), ceil(1797 * self.test_fraction)


class CIFAR(Data):
    """CIFAR-10 or CIFAR-100 (Krizhevsky 2009), downloaded once through torchvision."""

    name: Literal["cifar10", "cifar100"] = "cifar10"

    def _whole(self) -> tuple[float, float]:
        return 50_000, 10_000


class ImageFolder(Data):
    """A folder with one folder of images per class, or with `train` and `test` of such."""

    name: Literal["imagefolder"] = "imagefolder"
    path: Annotated[str, Field(min_length=1)]
    """The folder, relative to where snakemake runs, or absolute."""
    size: Annotated[int, Field(ge=4, le=1024), WHOLE, Unit("pixels")] = 32
    """Side of the square images after resizing and centre-cropping, in pixels."""
    test_fraction: Annotated[Fraction, Unit("1")] = 0.2
    """Share held out for testing where the folder has no `train` and `test` of its own."""
    fingerprint: str | None = None
    """Digest of the folder's file names and sizes; filled in when the study is read."""

    @model_validator(mode="before")
    @classmethod
    def _look(cls, values: Any) -> Any:
        """Fill in the fingerprint: the address of a folder is what it holds, not where it is."""
        if not isinstance(values, dict) or values.get("fingerprint") is not None:
            return values
        if not isinstance(values.get("path"), str):
            return values
        from widthlab.data.fingerprint import fingerprint

        try:
            return {**values, "fingerprint": fingerprint(values["path"])}
        except WidthlabError as error:
            raise ValueError(str(error)) from None


class Gaussian(Data):
    """Synthetic inputs x ~ N(0, 1)^d with labels from a random linear teacher."""

    name: Literal["gaussian"] = "gaussian"
    dimension: Annotated[Count, Unit("features")] = 16
    """d, the number of input features."""
    classes: Annotated[int, Field(ge=2), WHOLE, Unit("classes")] = 2
    """Number of classes of the teacher."""
    train_samples: Annotated[Count, Unit("samples")] = 512
    """Training samples to draw."""
    test_samples: Annotated[Count, Unit("samples")] = 256
    """Test samples to draw."""


DataSet = Annotated[Digits | CIFAR | ImageFolder | Gaussian | TextFile, Field(discriminator="name")]


# ── training ────────────────────────────────────────────────────────────────────────────────


class Training(Spec):
    """How a network is trained."""

    optimiser: Literal["sgd", "adam"] = "sgd"
    """Update rule."""
    learning_rate: Annotated[Positive, Unit("1")] = 0.1
    """Base learning rate, before width factors of the parameterisation."""
    momentum: Annotated[float, Field(ge=0, lt=1), REAL, Unit("1")] = 0.0
    """Momentum of sgd."""
    weight_decay: Annotated[NonNegative, Unit("1")] = 0.0
    """L2 penalty coefficient added to the gradient."""
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"
    """Loss, a mean over samples (of a sequence, over its tokens); mse is ½|f - onehot|² summed over
    outputs, not for language models."""
    batch_size: Annotated[Count | Literal["full"], Unit("samples")] = 64
    """Samples in a step, or `full` for full-batch gradient descent."""
    steps: Annotated[Count, Unit("steps")] = 200
    """Optimiser steps."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Learning rate over steps, after warm-up: constant, or decaying to zero."""
    warmup_steps: Annotated[int, Field(ge=0), WHOLE, Unit("steps")] = 0
    """Steps of linear warm-up."""
    clip_norm: Annotated[Positive | None, Unit("1")] = None
    """Largest gradient norm; left out, no clipping."""
    snapshots: Annotated[int, Field(ge=2, le=200), WHOLE, Unit("snapshots")] = 6
    """Snapshots along training, log-spaced in steps, first and last included."""
    save_every: Annotated[Count, Unit("steps")] = 200
    """Steps between saves of the state from which a killed run resumes."""

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        if self.optimiser == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd; remove it or set optimiser: sgd")
        if self.warmup_steps >= self.steps:
            raise ValueError("warmup_steps must be smaller than steps")
        return self


class Checkpoint(Spec):
    """One trained network: all that determines it."""

    network: Network
    data: DataSet
    training: Training
    seed: Annotated[Seed, Unit("seed")]
    """Seed of the initialisation and of the batch order, within the study."""
    study_seed: Annotated[Seed, Unit("seed")]
    """Seed of the study."""
