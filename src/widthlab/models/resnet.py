"""The 20-layer CIFAR residual network of He et al. (2015), arXiv:1512.03385, section 4.2."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from torch.nn.utils import skip_init

from widthlab.models.layers import Dense
from widthlab.models.model import Model


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    """Return a 3×3 convolution without bias, uninitialised so that no global seed is used."""
    layer: nn.Conv2d = skip_init(  # type: ignore[no-untyped-call]
        nn.Conv2d, inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False
    )
    return layer


class Stem(nn.Module):
    """The first convolution, with batch normalisation and ReLU."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = _convolution(channels, width, 1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, channels, H, W) to feature maps (n, width, H, W)."""
        return torch.relu(self.norm(self.conv(x)))


class BasicBlock(nn.Module):
    """h → relu(shortcut(h) + F(h)), with two 3×3 convolutions in F and an option A shortcut.

    Where the block halves the image or widens it, the shortcut takes every second pixel and pads
    the new channels with zeros, so that it has no parameters.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, outputs - inputs
        self.conv1 = _convolution(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _convolution(outputs, outputs, 1)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, h: Tensor) -> Tensor:
        """Map feature maps (n, inputs, H, W) to (n, outputs, ⌈H/stride⌉, ⌈W/stride⌉)."""
        branch = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(h)))))
        skip = h if self.stride == 1 else h[:, :, :: self.stride, :: self.stride]
        if self.padding:
            skip = F.pad(skip, (0, 0, 0, 0, 0, self.padding))
        return torch.relu(skip + branch)


class ResNet20(Model):
    """Stem, three stages of three blocks at widths w, 2w and 4w, average pool, linear head.

    The head has weights of variance 1 / fan-in and biases that start at 0.
    """

    def __init__(self, width: int, channels: int, outputs: int) -> None:
        super().__init__()
        self.stem = Stem(channels, width)
        self.blocks = nn.ModuleList(
            BasicBlock(inputs, width * 2**stage, stride)
            for stage in range(3)
            for inputs, stride in (
                (width * 2 ** max(stage - 1, 0), 2 if stage else 1),
                (width * 2**stage, 1),
                (width * 2**stage, 1),
            )
        )
        self.head = Dense(4 * width, outputs, bias=True)
        self.signals = ("stem", *(f"blocks.{block}" for block in range(9)))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, channels, H, W) to outputs (n, outputs)."""
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(h.mean(dim=(2, 3)))
        return out
