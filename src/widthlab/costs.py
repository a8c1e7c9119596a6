"""What a piece of work will cost, estimated before it runs: one model for plan and scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from widthlab.errors import WidthlabError
from widthlab.specs import (
    CIFAR,
    MLP,
    Checkpoint,
    DataSet,
    Digits,
    Gaussian,
    Llama,
    Network,
    Pythia,
    ResidualMLP,
    TextFile,
)
from widthlab.specs_language import PYTHIA_TOKENS

BASELINE_MEMORY = 1.1e9
"""Bytes that a job takes before any tensor exists: Python, torch and xarray (measured: 0.7 GB), and
on a cluster two processes of Snakemake around them (0.15 GB each)."""
CORE_FLOPS = 2e10
"""Floating-point operations a second that one core sustains (measured: 4e10 at width 256)."""
GPU_FLOPS = 1e12
"""The same for a GPU: cautious, since small networks keep one waiting (not measured)."""
START_SECONDS = 8.0
"""Seconds to start a job's process and import torch (measured: 4 to 12 on slow cores)."""

PIECE_SECONDS = 0.25
"""Seconds that a result takes whatever its size: inputs read and verified, bytes written to the
disk (measured: 0.1 to 0.3)."""
STEP_SECONDS = 1e-3
"""The same of a training step, on a core and on a GPU (measured: 1.5e-3 on a slow core)."""

DOWNLOAD_BYTES = 2e7
"""Bytes a second of a download from the hub (a guess)."""

DAY_MINUTES = 24 * 60

UNKNOWN_SAMPLES = 50_000
"""Most samples that are counted for either part of a data set that is not read yet."""


@dataclass(frozen=True)
class Cost:
    """An estimate: operations, bytes of memory and of disk, files written, and steps."""

    flops: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    files: int = 3
    steps: int = 0
    """Steps of training."""
    seconds: float = 0.0
    """What takes its time on any machine: downloads."""

    @property
    def core_seconds(self) -> float:
        """Time on one core."""
        return self._overhead + self.flops / CORE_FLOPS

    @property
    def gpu_seconds(self) -> float:
        """Time on one GPU."""
        return self._overhead + self.flops / GPU_FLOPS

    @property
    def _overhead(self) -> float:
        return PIECE_SECONDS + STEP_SECONDS * self.steps + self.seconds


def memory_mb(costs: Iterable[Cost]) -> int:
    """Return the megabytes that a job needs for pieces of work done one after another."""
    return int((BASELINE_MEMORY + 1.5 * max(cost.memory for cost in costs)) / 1e6)


def minutes(costs: Iterable[Cost], on_gpu: bool = False) -> int:
    """Return the minutes to ask a scheduler for: ten times the estimate, from ten to a day.

    The estimate is that of the device that the job asks for. More than a day is refused by many
    queues, and not needed: training goes on where it was, with more time at each attempt.
    """
    seconds = START_SECONDS + sum(
        cost.gpu_seconds if on_gpu else cost.core_seconds for cost in costs
    )
    return min(max(10, ceil(10 * seconds / 60)), DAY_MINUTES)


@dataclass(frozen=True)
class Size:
    """Parameters, multiplications of one forward pass, and activations of one sample."""

    parameters: float
    multiplications: float
    activations: float


def input_shape(data: DataSet) -> tuple[int, ...]:
    """Return the shape of one sample, without reading it."""
    if isinstance(data, Digits):
        return (1, 8, 8)
    if isinstance(data, CIFAR):
        return (3, 32, 32)
    if isinstance(data, Gaussian):
        return (data.dimension,)
    if isinstance(data, TextFile):
        return (data.length,)
    return (3, data.size, data.size)


def outputs_of(data: DataSet) -> int:
    """Return about how many outputs networks have at each label, without reading the data."""
    return data.tokens if isinstance(data, TextFile) else 10


def samples(data: DataSet) -> tuple[int, int]:
    """Return about how many training and test samples a data set has, without reading it."""
    train, test = data.most()
    return int(min(train, UNKNOWN_SAMPLES)), int(min(test, UNKNOWN_SAMPLES))


def size(network: Network, shape: tuple[int, ...], outputs: int = 10) -> Size:
    """Return the size of a network for inputs of one shape."""
    n, depth, architecture = network.width, network.depth, network.architecture
    inputs = 1
    for length in shape:
        inputs *= length
    if isinstance(architecture, MLP):
        weights = inputs * n + (depth - 1) * n * n + n * outputs
        return Size(weights, weights, inputs + 3 * depth * n)
    if isinstance(architecture, ResidualMLP):
        hidden = architecture.hidden_width(n)
        block = n * n if architecture.branch == "one_layer" else 2 * n * hidden
        weights = inputs * n + depth * block + n * outputs
        return Size(weights, weights, inputs + depth * (3 * n + 2 * hidden))
    if isinstance(architecture, Llama):
        hidden = architecture.hidden_width(n)
        return _decoder_size(n, depth, 3 * n * hidden, 4 * n + 3 * hidden, shape, outputs)
    if isinstance(architecture, Pythia):
        tokens = max(outputs, PYTHIA_TOKENS)
        return _decoder_size(n, depth, 8 * n * n, 12 * n, shape, tokens)
    if len(shape) != 3:
        raise WidthlabError(
            f"resnet20 takes images, but inputs of the data set have shape {shape}; choose an "
            "image data set, or the network mlp or residual_mlp"
        )
    channels, height, width = shape
    positions = height * width
    parameters = multiplications = 9.0 * channels * n
    multiplications *= positions
    activations = 2.0 * n * positions
    for stage in range(3):
        out = n * 2**stage
        area = positions / 4**stage
        into = out if stage == 0 else out // 2
        weights = 9.0 * (into * out + 5 * out * out)
        parameters += weights
        multiplications += weights * area
        activations += 18.0 * out * area
    return Size(parameters + 4 * n * outputs, multiplications, activations)


def _decoder_size(
    n: int, depth: int, perceptron: int, kept: int, shape: tuple[int, ...], outputs: int
) -> Size:
    """Return the size of a decoder: attention (4N²) and a perceptron in each layer, by token.

    `kept` is what the perceptron of a layer keeps of a token for the pass backward. Attention over
    T tokens multiplies each with all others, and the logits are T·V numbers, twice with the loss.
    """
    (tokens,) = shape
    layer = 4 * n * n + perceptron
    multiplications = tokens * (depth * (layer + 2 * tokens * n) + n * outputs)
    activations = tokens * (depth * (12 * n + kept) + 2 * outputs)
    return Size(depth * layer + 2 * n * outputs, multiplications, activations)


def data_cost(data: DataSet) -> Cost:
    """Estimate preparing a data set."""
    features = 1
    for length in input_shape(data):
        features *= length
    # A token and its label, in 64 bits.
    bytes_each = {"gaussian": 4, "textfile": 16}.get(data.name, 1)
    count = sum(samples(data))
    disk = count * features * bytes_each
    return Cost(flops=1e3 * count * features, memory=4.0 * disk, disk=disk)


def training_cost(checkpoint: Checkpoint) -> Cost:
    """Estimate one training run."""
    training, data = checkpoint.training, checkpoint.data
    train, test = samples(data)
    of = size(checkpoint.network, input_shape(data), outputs_of(data))
    if isinstance(checkpoint.network.architecture, Pythia):
        # Weights come in 16 bits mostly; a download is kept beside what is published.
        stored = 4.0 * of.parameters
        return Cost(memory=stored, disk=stored, seconds=0.5 * stored / DOWNLOAD_BYTES)
    batch = train if training.batch_size == "full" else min(training.batch_size, train)
    passes = training.steps * batch * 3 + training.snapshots * (train + test)
    weights = 4.0 * of.parameters
    # Samples that are evaluated at once; of sequences fewer, for their logits.
    least = 1 if isinstance(data, TextFile) else 256
    return Cost(
        flops=2.0 * of.multiplications * passes,
        memory=6 * weights + 8.0 * of.activations * max(batch, least) + 8.0 * data_cost(data).disk,
        disk=training.snapshots * weights,
        files=training.snapshots + 4,
        steps=training.steps,
    )
