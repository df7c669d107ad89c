"""3D ResNet-50 for video (Hara, Kataoka, Satoh: "Can Spatiotemporal 3D CNNs Retrace the History of 2D CNNs
and ImageNet?", CVPR 2018, table 1 and figure 3), with shortcuts of type B (projections)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .weights import damp, randomize
from .workload import Workload, gaussian_inputs


@dataclass(frozen=True)
class Shape:
    frames: int
    image: int  # pixels on a side
    width: int  # channels of the first stage's bottlenecks; each later stage doubles it
    blocks: tuple[int, ...]  # bottlenecks in each stage
    classes: int


FULL = Shape(frames=16, image=112, width=64, blocks=(3, 4, 6, 3), classes=400)
SMALL = Shape(frames=8, image=32, width=4, blocks=(1, 1, 2, 1), classes=10)


class Bottleneck(nn.Module):
    """1 x 1 x 1, 3 x 3 x 3 (with the stride), 1 x 1 x 1, plus the shortcut.

    [N, inputs, D, H, W] -> [N, 4 * width, D / stride, H / stride, W / stride], rounded up.
    """

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv3d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm3d(width)
        self.conv2 = nn.Conv3d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm3d(width)
        self.conv3 = nn.Conv3d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm3d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv3d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm3d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet3d(nn.Module):
    """Clip [N, 3, frames, image, image] -> logits [N, classes]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, shape.width, 7, stride=(1, 2, 2), padding=3, bias=False)
        self.norm = nn.BatchNorm3d(shape.width)
        self.pool = nn.MaxPool3d(3, stride=2, padding=1)
        channels = shape.width
        stages: list[nn.Module] = []
        for stage, count in enumerate(shape.blocks):
            width = shape.width << stage
            blocks: list[nn.Module] = []
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(channels, width, stride=stride))
                channels = 4 * width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.average = nn.AdaptiveAvgPool3d(1)
        self.classifier = nn.Linear(channels, shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        logits: Tensor = self.classifier(torch.flatten(self.average(self.stages(x)), 1))
        return logits


def build(*, batch: int, small: bool) -> Workload:
    """float32 `clip` [batch, 3, 16, 112, 112] -> float32 `logits` [batch, 400]."""
    shape = SMALL if small else FULL
    model = ResNet3d(shape).eval()
    randomize(model, seed=4)
    damp((block.norm3 for block in model.modules() if isinstance(block, Bottleneck)), 0.5)
    sample = gaussian_inputs(batch, 3, shape.frames, shape.image, shape.image)
    return Workload(model, ("clip",), ("logits",), sample)
