"""The parts of GoogLeNet and Inception-v3: a convolution with its BatchNorm and ReLU, and parallel branches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor, nn

EPSILON = 1e-3  # of every BatchNorm

Size: TypeAlias = "int | tuple[int, int]"


class Conv(nn.Module):
    """Convolution, BatchNorm, ReLU: [N, inputs, H, W] -> [N, outputs, H', W']; ``same`` keeps H and W."""

    def __init__(
        self, inputs: int, outputs: int, kernel: Size = 1, *, stride: int = 1, same: bool = True
    ) -> None:
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


def head(channels: int, classes: int) -> nn.Sequential:
    """[N, channels, H, W] -> logits [N, classes]."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(channels, classes))
