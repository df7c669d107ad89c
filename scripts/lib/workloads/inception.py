"""Inception-v3 (Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: "Rethinking the Inception Architecture for Computer
Vision", CVPR 2016, table 1 and figures 5 to 7, 10), without the auxiliary classifier, which serves training only.

The widths are those of the authors' code, which torchvision has, too: 23,834,568 parameters, 5.7 G multiply-adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload, gaussian_inputs

EPSILON = 1e-3  # of every BatchNorm

Size: TypeAlias = "int | tuple[int, int]"


class Conv(nn.Module):
    """Convolution, BatchNorm, ReLU: [N, inputs, H, W] -> [N, outputs, H', W']; ``same`` keeps H and W."""

    def __init__(self, inputs: int, outputs: int, kernel: Size = 1, *, stride: int = 1, same: bool = True) -> None:
        super().__init__()
        window = (kernel, kernel) if isinstance(kernel, int) else kernel
        around = (window[0] // 2, window[1] // 2) if same else (0, 0)
        self.conv = nn.Conv2d(inputs, outputs, window, stride=stride, padding=around, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Branches(nn.Module):
    """Branches that read the same picture, concatenated: [N, C, H, W] -> [N, sum of their channels, H', W']."""

    def __init__(self, branches: Iterable[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


@dataclass(frozen=True)
class Shape:
    image: int  # pixels on a side
    divisor: int  # of all widths
    factored: tuple[int, ...]  # widths inside the modules of figure 6, one after another
    classes: int


FULL = Shape(image=299, divisor=1, factored=(128, 160, 160, 192), classes=1000)
SMALL = Shape(image=107, divisor=16, factored=(128, 192), classes=10)


class Builder:
    """Makes layers of a shape's widths, and knows how many channels the last one gave."""

    def __init__(self, divisor: int) -> None:
        self._divisor = divisor
        self.channels = 3

    def width(self, full: int) -> int:
        return full // self._divisor

    def chain(self, inputs: int, *layers: tuple[int, Size]) -> nn.Sequential:
        """Convolutions (outputs at full width, window) one after another."""
        found = []
        for outputs, window in layers:
            found.append(Conv(inputs, self.width(outputs), window))
            inputs = self.width(outputs)
        return nn.Sequential(*found)

    def conv(self, outputs: int, window: Size, *, stride: int = 1, same: bool = False) -> nn.Module:
        """A convolution of the stem."""
        found = Conv(self.channels, self.width(outputs), window, stride=stride, same=same)
        self.channels = self.width(outputs)
        return found

    def module(self, chains: Sequence[Sequence[tuple[int, Size]]], pool: int, fork: Sequence[Size] = ()) -> nn.Module:
        """Chains beside an average pool with a projection to ``pool`` channels, at the same size.

        With ``fork``, all chains but the first end in branches with these windows, as wide as what they read.
        """
        branches: list[nn.Module] = []
        outputs = 0
        for number, layers in enumerate(chains):
            branch: nn.Module = self.chain(self.channels, *layers)
            last = layers[-1][0]
            if fork and number > 0:
                ends = Branches(self.chain(self.width(last), (384, window)) for window in fork)
                branch, last = nn.Sequential(branch, ends), 384 * len(fork)
            branches.append(branch)
            outputs += self.width(last)
        average = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        branches.append(nn.Sequential(average, self.chain(self.channels, (pool, 1))))
        self.channels = outputs + self.width(pool)
        return Branches(branches)

    def reduction(self, chains: Sequence[Sequence[tuple[int, Size]]]) -> nn.Module:
        """Chains whose last convolution halves the picture, beside a maximum pool (figure 10)."""
        branches: list[nn.Module] = []
        outputs = 0
        for layers in chains:
            *before, (last, window) = layers
            inputs = self.width(before[-1][0]) if before else self.channels
            end = Conv(inputs, self.width(last), window, stride=2, same=False)
            branches.append(nn.Sequential(self.chain(self.channels, *before), end))
            outputs += self.width(last)
        self.channels += outputs
        return Branches((*branches, nn.MaxPool2d(3, stride=2)))


ROW: Size = (1, 7)
COLUMN: Size = (7, 1)


def network(shape: Shape) -> nn.Sequential:
    """Picture [N, 3, image, image] -> logits [N, classes]."""
    build = Builder(shape.divisor)
    layers = [
        build.conv(32, 3, stride=2),
        build.conv(32, 3),
        build.conv(64, 3, same=True),
        nn.MaxPool2d(3, stride=2),
        build.conv(80, 1),
        build.conv(192, 3),
        nn.MaxPool2d(3, stride=2),
    ]
    for pool in (32, 64, 64):  # figure 5
        layers.append(build.module([[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]], pool))
    layers.append(build.reduction([[(384, 3)], [(64, 1), (96, 3), (96, 3)]]))
    for w in shape.factored:  # figure 6
        once = [(w, 1), (w, ROW), (192, COLUMN)]
        twice = [(w, 1), (w, COLUMN), (w, ROW), (w, COLUMN), (192, ROW)]
        layers.append(build.module([[(192, 1)], once, twice], 192))
    layers.append(build.reduction([[(192, 1), (320, 3)], [(192, 1), (192, ROW), (192, COLUMN), (192, 3)]]))
    for _ in range(2):  # figure 7
        layers.append(build.module([[(320, 1)], [(384, 1)], [(448, 1), (384, 3)]], 192, ((1, 3), (3, 1))))
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(build.channels, shape.classes)
    return nn.Sequential(*layers, nn.Sequential(*head))


def build(*, batch: int, small: bool) -> Workload:
    """float32 `image` [batch, 3, 299, 299] -> float32 `logits` [batch, 1000]."""
    shape = SMALL if small else FULL
    model = network(shape).eval()
    randomize(model, seed=7)
    return Workload(model, ("image",), ("logits",), gaussian_inputs(batch, 3, shape.image, shape.image))
