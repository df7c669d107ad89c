"""NASNet-A mobile, 4 @ 1056 (Zoph, Vasudevan, Shlens, Le: "Learning Transferable Architectures for Scalable
Image Recognition", CVPR 2018, figures 2 and 4, appendix A).

Convolutions pad evenly on both sides, where the original TensorFlow code pads one pixel more on the right at
stride 2; every size along the way is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from .weights import damp, randomize
from .workload import Workload, gaussian_inputs

EPSILON = 1e-3  # of every BatchNorm


@dataclass(frozen=True)
class Shape:
    image: int  # pixels on a side
    stem: int  # channels after the first convolution
    filters: int  # of the first stage's cells; each reduction doubles them
    repeats: int  # normal cells between two reductions (the paper's N)
    classes: int


FULL = Shape(image=224, stem=32, filters=44, repeats=4, classes=1000)
SMALL = Shape(image=64, stem=8, filters=8, repeats=1, classes=10)


Branch: TypeAlias = tuple[str, int, int]
"""An operation, the hidden state of the cell that it reads, and the size of its window."""


@dataclass(frozen=True)
class Plan:
    """A cell: each block adds two branches into a new state; `joined` states are concatenated."""

    blocks: tuple[tuple[Branch, Branch], ...]
    joined: tuple[int, ...]
    stride: int


SEPARABLE, AVERAGE, MAXIMUM, IDENTITY = "separable", "average", "maximum", "identity"
CURRENT, PREVIOUS = 0, 1  # the states a cell starts with; its blocks make states 2, 3, ...

NORMAL = Plan(
    blocks=(
        ((SEPARABLE, CURRENT, 5), (SEPARABLE, PREVIOUS, 3)),
        ((SEPARABLE, PREVIOUS, 5), (SEPARABLE, PREVIOUS, 3)),
        ((AVERAGE, CURRENT, 3), (IDENTITY, PREVIOUS, 1)),
        ((AVERAGE, PREVIOUS, 3), (AVERAGE, PREVIOUS, 3)),
        ((SEPARABLE, CURRENT, 3), (IDENTITY, CURRENT, 1)),
    ),
    joined=(PREVIOUS, 2, 3, 4, 5, 6),
    stride=1,
)
REDUCTION = Plan(
    blocks=(
        ((SEPARABLE, CURRENT, 5), (SEPARABLE, PREVIOUS, 7)),
        ((MAXIMUM, CURRENT, 3), (SEPARABLE, PREVIOUS, 7)),
        ((AVERAGE, CURRENT, 3), (SEPARABLE, PREVIOUS, 5)),
        ((IDENTITY, 3, 1), (AVERAGE, 2, 3)),
        ((SEPARABLE, 2, 3), (MAXIMUM, CURRENT, 3)),
    ),
    joined=(3, 4, 5, 6),
    stride=2,
)


class Separable(nn.Module):
    """ReLU, depthwise k x k, pointwise 1 x 1, BatchNorm, all applied twice; the first has the stride.

    [N, inputs, H, W] -> [N, outputs, H / stride, W / stride], rounded up.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int) -> None:
        super().__init__()
        around = kernel // 2
        self.depthwise1 = nn.Conv2d(inputs, inputs, kernel, stride=stride, padding=around, groups=inputs, bias=False)
        self.pointwise1 = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, eps=EPSILON)
        self.depthwise2 = nn.Conv2d(outputs, outputs, kernel, padding=around, groups=outputs, bias=False)
        self.pointwise2 = nn.Conv2d(outputs, outputs, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.pointwise1(self.depthwise1(torch.relu(x))))
        y: Tensor = self.norm2(self.pointwise2(self.depthwise2(torch.relu(x))))
        return y


class Squeeze(nn.Module):
    """ReLU, 1 x 1, BatchNorm: [N, inputs, H, W] -> [N, outputs, H, W]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(torch.relu(x)))
        return y


class FactorizedReduction(nn.Module):
    """Halve a picture by two paths, one of them a pixel off: [N, C, H, W] -> [N, outputs, H / 2, W / 2]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.pick = nn.AvgPool2d(1, stride=2)
        self.conv1 = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.conv2 = nn.Conv2d(inputs, outputs - outputs // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        shifted = functional.pad(x, (0, 1, 0, 1), value=0.0)[:, :, 1:, 1:]
        paths = (self.conv1(self.pick(x)), self.conv2(self.pick(shifted)))
        y: Tensor = self.norm(torch.cat(paths, dim=1))
        return y


class Cell(nn.Module):
    """The two last states (previous, current) -> [N, len(joined) * filters, H / stride, W / stride].

    `adjust` brings the previous state to the current one's size and to `outputs` channels.
    """

    def __init__(self, plan: Plan, adjust: nn.Module, previous: int, current: int, filters: int) -> None:
        super().__init__()
        self.plan = plan
        self.adjust = adjust
        self.squeeze = Squeeze(current, filters)
        self.left = nn.ModuleList()
        self.right = nn.ModuleList()
        for left, right in plan.blocks:
            self.left.append(_branch(plan, left, previous, filters))
            self.right.append(_branch(plan, right, previous, filters))

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        states = [self.squeeze(current), self.adjust(previous)]
        for ((_, left, _), (_, right, _)), one, other in zip(self.plan.blocks, self.left, self.right, strict=True):
            states.append(one(states[left]) + other(states[right]))
        return torch.cat([states[index] for index in self.plan.joined], dim=1)


def _branch(plan: Plan, branch: Branch, previous: int, filters: int) -> nn.Module:
    """The operation; only those on a cell's own inputs have the stride (states made inside are small)."""
    kind, state, kernel = branch
    stride = plan.stride if state in (CURRENT, PREVIOUS) else 1
    if kind == SEPARABLE:
        return Separable(previous if state == PREVIOUS else filters, filters, kernel, stride=stride)
    if kind == AVERAGE:
        return nn.AvgPool2d(kernel, stride=stride, padding=kernel // 2, count_include_pad=False)
    if kind == MAXIMUM:
        return nn.MaxPool2d(kernel, stride=stride, padding=kernel // 2)
    return nn.Identity()


@dataclass(frozen=True)
class _Feature:
    """Channels of a feature map and how often it has been halved."""

    channels: int
    halvings: int


class NasNet(nn.Module):
    """Picture [N, 3, image, image] -> logits [N, classes]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, shape.stem, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(shape.stem, eps=EPSILON)
        self.cells = nn.ModuleList()
        previous = current = _Feature(shape.stem, 0)
        for plan, filters in _plans(shape):
            adjust, adjusted = _adjust(previous, current, filters)
            if not self.cells:
                # The first cell takes the stem's picture as it is for its previous state.
                adjust, adjusted = nn.Identity(), previous.channels
            self.cells.append(Cell(plan, adjust, adjusted, current.channels, filters))
            halvings = current.halvings + (plan.stride == 2)
            previous, current = current, _Feature(len(plan.joined) * filters, halvings)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(current.channels, shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        previous = current = self.norm(self.conv(x))
        for cell in self.cells:
            previous, current = current, cell(previous, current)
        logits: Tensor = self.classifier(torch.flatten(self.average(torch.relu(current)), 1))
        return logits


def _plans(shape: Shape) -> Iterator[tuple[Plan, int]]:
    """Each cell and its filters, first to last: two stem cells, then three stages of normal cells."""
    yield REDUCTION, shape.filters // 4
    yield REDUCTION, shape.filters // 2
    for stage in range(3):
        filters = shape.filters << stage
        if stage > 0:
            yield REDUCTION, filters
        for _ in range(shape.repeats):
            yield NORMAL, filters


def _adjust(previous: _Feature, current: _Feature, filters: int) -> tuple[nn.Module, int]:
    if previous.halvings < current.halvings:
        return FactorizedReduction(previous.channels, filters), filters
    return Squeeze(previous.channels, filters), filters


def build(*, batch: int, small: bool) -> Workload:
    """float32 `image` [batch, 3, 224, 224] -> float32 `logits` [batch, 1000]."""
    shape = SMALL if small else FULL
    model = NasNet(shape).eval()
    randomize(model, seed=3)
    norms = (m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    damp(norms, 0.7)
    return Workload(model, ("image",), ("logits",), gaussian_inputs(batch, 3, shape.image, shape.image))
