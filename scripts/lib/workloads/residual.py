"""Residual networks of bottlenecks (He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition", CVPR
2016), over pictures or clips.

3D ResNet-50 (Hara, Kataoka, Satoh: "Can Spatiotemporal 3D CNNs Retrace the History of 2D CNNs and ImageNet?", CVPR
2018, table 1 and figure 3) has shortcuts of type B (projections). ResNeXt-50 32x4d (Xie, Girshick, Dollar, Tu, He:
"Aggregated Residual Transformations for Deep Neural Networks", CVPR 2017, table 1) is a ResNet-50 whose 3 x 3
convolutions have 32 groups, in the form of figure 3(c).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .weights import damp, randomize
from .workload import Workload, gaussian_inputs

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE = {2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


@dataclass(frozen=True)
class Shape:
    extents: tuple[int, ...]  # of the input: [frames,] height, width
    stem: int  # channels after the first convolution
    stem_stride: tuple[int, ...]
    width: int  # channels of the first stage's middle convolutions; each later stage doubles it
    expansion: int  # a bottleneck's outputs, as a multiple of its width
    groups: int  # of the middle convolutions
    blocks: tuple[int, ...]  # bottlenecks in each stage
    classes: int


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 (with the stride, in groups), 1 x 1, plus the shortcut; one more of each for clips.

    [N, inputs, ..., H, W] -> [N, expansion * width, ..., H / stride, W / stride], rounded up.
    """

    def __init__(self, shape: Shape, inputs: int, width: int, *, stride: int) -> None:
        super().__init__()
        conv, norm = CONV[len(shape.extents)], NORM[len(shape.extents)]
        outputs = shape.expansion * width
        self.conv1 = conv(inputs, width, 1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = conv(width, width, 3, stride=stride, padding=1, groups=shape.groups, bias=False)
        self.norm2 = norm(width)
        self.conv3 = conv(width, outputs, 1, bias=False)
        self.norm3 = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride=stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class Residual(nn.Module):
    """[N, 3, *extents] -> logits [N, classes]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        dims = len(shape.extents)
        self.conv = CONV[dims](3, shape.stem, 7, stride=shape.stem_stride, padding=3, bias=False)
        self.norm = NORM[dims](shape.stem)
        self.pool = POOL[dims](3, stride=2, padding=1)
        channels = shape.stem
        stages: list[nn.Module] = []
        for stage, count in enumerate(shape.blocks):
            width = shape.width << stage
            blocks: list[nn.Module] = []
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(shape, channels, width, stride=stride))
                channels = shape.expansion * width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.average = AVERAGE[dims](1)
        self.classifier = nn.Linear(channels, shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        logits: Tensor = self.classifier(torch.flatten(self.average(self.stages(x)), 1))
        return logits


CLIPS = Shape(
    extents=(16, 112, 112),
    stem=64,
    stem_stride=(1, 2, 2),
    width=64,
    expansion=4,
    groups=1,
    blocks=(3, 4, 6, 3),
    classes=400,
)
PICTURES = replace(CLIPS, extents=(224, 224), stem_stride=(2, 2), width=128, expansion=2, groups=32, classes=1000)
SMALL_CLIPS = replace(CLIPS, extents=(8, 32, 32), stem=4, width=4, blocks=(1, 1, 2, 1), classes=10)
SMALL_PICTURES = replace(PICTURES, extents=(64, 64), stem=8, width=16, groups=4, blocks=(1, 1, 2, 1), classes=10)


def resnet50_3d(*, batch: int, small: bool) -> Workload:
    """float32 `clip` [batch, 3, 16, 112, 112] -> float32 `logits` [batch, 400]."""
    return _workload(SMALL_CLIPS if small else CLIPS, batch, "clip", seed=4)


def resnext50(*, batch: int, small: bool) -> Workload:
    """float32 `image` [batch, 3, 224, 224] -> float32 `logits` [batch, 1000]."""
    return _workload(SMALL_PICTURES if small else PICTURES, batch, "image", seed=5)


def _workload(shape: Shape, batch: int, input_name: str, seed: int) -> Workload:
    model = Residual(shape).eval()
    randomize(model, seed)
    damp((block.norm3 for block in model.modules() if isinstance(block, Bottleneck)), 0.5)
    return Workload(model, (input_name,), ("logits",), gaussian_inputs(batch, 3, *shape.extents))
