"""U-Net (Ronneberger, Fischer, Brox: "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015,
figure 1) with padded convolutions and BatchNorm, half as wide, for pictures of any size and any number of them.

Its file has symbolic dimensions: `batch`, and `height` and `width`, which must be multiples of 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload, gaussian_inputs


@dataclass(frozen=True)
class Shape:
    sample: int  # pixels on a side of what the file is tried on
    widths: tuple[int, ...]  # channels at each resolution, full first
    classes: int


FULL = Shape(sample=256, widths=(32, 64, 128, 256, 512), classes=2)
SMALL = Shape(sample=32, widths=(4, 8, 16, 16, 16), classes=2)


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Twice convolution 3 x 3, BatchNorm, ReLU: [N, inputs, H, W] -> [N, outputs, H, W]."""
    layers: list[nn.Module] = []
    for first in (inputs, outputs):
        conv = nn.Conv2d(first, outputs, 3, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Picture [N, 1, H, W] -> logits of each pixel's class [N, classes, H, W]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        pairs = list(pairwise(shape.widths))
        self.first = double(1, shape.widths[0])
        self.down = nn.ModuleList(double(wide, deep) for wide, deep in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(deep, wide, 2, stride=2) for wide, deep in pairs)
        self.merge = nn.ModuleList(double(2 * wide, wide) for wide, _ in pairs)
        self.classes = nn.Conv2d(shape.widths[0], shape.classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.first(x)]
        for down in self.down:
            levels.append(down(torch.max_pool2d(levels[-1], 2)))
        y = levels.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            y = merge(torch.cat((levels.pop(), up(y)), dim=1))
        logits: Tensor = self.classes(y)
        return logits


def build(*, batch: int, small: bool) -> Workload:
    """float32 `image` [batch, 1, height, width] -> float32 `logits` [batch, 2, height, width]."""
    shape = SMALL if small else FULL
    model = UNet(shape).eval()
    randomize(model, seed=12)
    axes = {0: "batch", 2: "height", 3: "width"}
    return Workload(
        model,
        ("image",),
        ("logits",),
        gaussian_inputs(batch, 1, shape.sample, shape.sample),
        dynamic={"image": axes, "logits": axes},
    )
