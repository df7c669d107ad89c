"""GoogLeNet (Szegedy, Liu, Jia, Sermanet, Reed, Anguelov, Erhan, Vanhoucke, Rabinovich: "Going Deeper with
Convolutions", CVPR 2015, table 1), without the auxiliary classifiers, which serve training only.

As torchvision has it, which the papers on streams measure: BatchNorm instead of local response normalisation, and
3 x 3 where table 1 says 5 x 5. 6,624,904 parameters, 1.50 G multiply-adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .branches import Branches, Conv, head
from .weights import randomize
from .workload import Workload, gaussian_inputs


@dataclass(frozen=True)
class Widths:
    """Channels of an Inception module: table 1's columns from "#1x1" to "pool proj"."""

    one: int
    reduce3: int
    three: int
    reduce5: int
    five: int
    pool: int

    @property
    def outputs(self) -> int:
        return self.one + self.three + self.five + self.pool


@dataclass(frozen=True)
class Shape:
    image: int  # pixels on a side
    stem: tuple[int, int, int]  # channels of the first three convolutions
    stages: tuple[tuple[Widths, ...], ...]  # between two of them the picture is halved
    classes: int


FULL = Shape(
    image=224,
    stem=(64, 64, 192),
    stages=(
        (Widths(64, 96, 128, 16, 32, 32), Widths(128, 128, 192, 32, 96, 64)),
        (
            Widths(192, 96, 208, 16, 48, 64),
            Widths(160, 112, 224, 24, 64, 64),
            Widths(128, 128, 256, 24, 64, 64),
            Widths(112, 144, 288, 32, 64, 64),
            Widths(256, 160, 320, 32, 128, 128),
        ),
        (Widths(256, 160, 320, 32, 128, 128), Widths(384, 192, 384, 48, 128, 128)),
    ),
    classes=1000,
)
SMALL = Shape(
    image=64,
    stem=(8, 8, 16),
    stages=((Widths(8, 8, 16, 4, 8, 8),), (Widths(16, 8, 16, 4, 8, 8), Widths(16, 16, 16, 4, 8, 8))),
    classes=10,
)


def halve(kernel: int = 3) -> nn.Module:
    """Maximum over windows, the last of which may reach beyond the end: [N, C, H, W] -> [N, C, H / 2, W / 2]."""
    return nn.MaxPool2d(kernel, stride=2, ceil_mode=True)


def module(inputs: int, widths: Widths) -> nn.Module:
    """Figure 2(b): [N, inputs, H, W] -> [N, widths.outputs, H, W]."""
    return Branches(
        (
            Conv(inputs, widths.one),
            nn.Sequential(Conv(inputs, widths.reduce3), Conv(widths.reduce3, widths.three, 3)),
            nn.Sequential(Conv(inputs, widths.reduce5), Conv(widths.reduce5, widths.five, 3)),
            nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), Conv(inputs, widths.pool)),
        )
    )


def network(shape: Shape) -> nn.Sequential:
    """Picture [N, 3, image, image] -> logits [N, classes]."""
    first, second, channels = shape.stem
    layers = [Conv(3, first, 7, stride=2), halve(), Conv(first, second), Conv(second, channels, 3), halve()]
    for number, stage in enumerate(shape.stages):
        if number > 0:
            layers.append(halve(3 if number == 1 else 2))
        for widths in stage:
            layers.append(module(channels, widths))
            channels = widths.outputs
    return nn.Sequential(*layers, head(channels, shape.classes))


def build(*, batch: int, small: bool) -> Workload:
    """float32 `image` [batch, 3, 224, 224] -> float32 `logits` [batch, 1000]."""
    shape = SMALL if small else FULL
    model = network(shape).eval()
    randomize(model, seed=6)
    return Workload(model, ("image",), ("logits",), gaussian_inputs(batch, 3, shape.image, shape.image))
