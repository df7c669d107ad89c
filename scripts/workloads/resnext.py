"""ResNeXt-50 32x4d (Xie, Girshick, Dollar, Tu, He: "Aggregated Residual Transformations for Deep Neural
Networks", CVPR 2017, table 1): a ResNet-50 whose 3 x 3 convolutions have 32 groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .weights import damp, randomize
from .workload import Workload, gaussian_inputs


@dataclass(frozen=True)
class Shape:
    image: int  # pixels on a side
    stem: int  # channels after the first convolution
    width: int  # channels of the first stage's grouped convolutions; each later stage doubles it
    groups: int  # the cardinality
    blocks: tuple[int, ...]  # bottlenecks in each stage
    classes: int


FULL = Shape(image=224, stem=64, width=128, groups=32, blocks=(3, 4, 6, 3), classes=1000)
SMALL = Shape(image=64, stem=8, width=16, groups=4, blocks=(1, 1, 2, 1), classes=10)


class Bottleneck(nn.Module):
    """1 x 1, grouped 3 x 3 (with the stride), 1 x 1, plus the shortcut, in the form of figure 3(c).

    [N, inputs, H, W] -> [N, 2 * width, H / stride, W / stride].
    """

    def __init__(self, inputs: int, width: int, *, groups: int, stride: int) -> None:
        super().__init__()
        outputs = 2 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNeXt(nn.Module):
    """Picture [N, 3, image, image] -> logits [N, classes]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, shape.stem, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(shape.stem)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = shape.stem
        stages: list[nn.Module] = []
        for stage, count in enumerate(shape.blocks):
            width = shape.width << stage
            blocks: list[nn.Module] = []
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(channels, width, groups=shape.groups, stride=stride))
                channels = 2 * width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        logits: Tensor = self.classifier(torch.flatten(self.average(self.stages(x)), 1))
        return logits


def build(*, batch: int, small: bool) -> Workload:
    """float32 `image` [batch, 3, 224, 224] -> float32 `logits` [batch, 1000]."""
    shape = SMALL if small else FULL
    model = ResNeXt(shape).eval()
    randomize(model, seed=5)
    damp((block.norm3 for block in model.modules() if isinstance(block, Bottleneck)), 0.5)
    return Workload(model, ("image",), ("logits",), gaussian_inputs(batch, 3, shape.image, shape.image))
