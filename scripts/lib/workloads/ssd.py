"""A single-shot detector (Liu et al.: "SSD: Single Shot MultiBox Detector", ECCV 2016, section 2) on a MobileNet
(Howard et al.: "MobileNets", 2017, table 1) of half its width, with non-maximum suppression in the graph.

How many boxes come out depends on the picture: the file's outputs have a symbolic dimension, `found`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload, gaussian_inputs

OVERLAP = 0.5  # share of the union from which two boxes are taken for one
LIKELY = 0.3  # least score
EACH = 20  # boxes of a class at most


@dataclass(frozen=True)
class Shape:
    image: int  # pixels on a side
    stem: int  # channels after the first convolution
    widths: tuple[tuple[int, int], ...]  # channels and stride of each separable convolution
    heads: tuple[int, ...]  # after how many of them boxes are read off
    sizes: tuple[float, ...]  # sides of these boxes, as shares of the picture
    classes: int


FULL = Shape(
    image=256,
    stem=16,
    widths=(
        (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (256, 1), (256, 1), (256, 1),
        (256, 1), (512, 2), (512, 1), (256, 2), (256, 2),
    ),
    heads=(11, 13, 14, 15),
    sizes=(0.15, 0.35, 0.55, 0.8),
    classes=20,
)  # fmt: skip
SMALL = Shape(image=64, stem=8, widths=((8, 1), (16, 2), (16, 2), (16, 2)), heads=(3, 4), sizes=(0.3, 0.7), classes=3)
RATIOS = (1.0, 2.0, 0.5)  # of width to height


class Suppress(torch.autograd.Function):
    """ONNX's NonMaxSuppression: boxes [1, B, 4] as (y1, x1, y2, x2), scores [1, C, B] -> int64 [found, 3].

    Rows are (picture, class, box), best first within a class.
    """

    @staticmethod
    def forward(ctx: Any, boxes: Tensor, scores: Tensor) -> Tensor:
        rows = [(0, kind, box) for kind in range(scores.shape[1]) for box in keep(boxes[0], scores[0, kind])]
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)

    @staticmethod
    def symbolic(g: Any, boxes: Any, scores: Any) -> Any:
        limits = (torch.tensor(EACH), torch.tensor(OVERLAP), torch.tensor(LIKELY))
        constants = [g.op("Constant", value_t=each.reshape(1)) for each in limits]
        return g.op("NonMaxSuppression", boxes, scores, *constants)


def keep(boxes: Tensor, scores: Tensor) -> list[int]:
    """The boxes, of [B, 4] with scores [B], that do not overlap a better one too much."""
    left = torch.argsort(scores, descending=True, stable=True)
    left = left[scores[left] > LIKELY]
    kept: list[int] = []
    while len(left) and len(kept) < EACH:
        best, left = left[0], left[1:]
        kept.append(int(best))
        left = left[overlap(boxes[best], boxes[left]) <= OVERLAP]
    return kept


def overlap(box: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of a box [4] with others [B, 4] -> [B]."""
    low, high = torch.maximum(box[:2], others[:, :2]), torch.minimum(box[2:], others[:, 2:])
    common = (high - low).clamp(min=0).prod(1)
    areas = (others[:, 2:] - others[:, :2]).prod(1) + (box[2:] - box[:2]).prod()
    return common / (areas - common)


def separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Depthwise 3 x 3 and 1 x 1 convolutions, each with BatchNorm and ReLU6: [N, inputs, H, W] -> [N, outputs, ...]."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride=stride, padding=1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU6(),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


def anchors(cells: int, size: float) -> Tensor:
    """The boxes that a grid of cells x cells starts from: [cells * cells * ratios, 4] as (y, x, height, width)."""
    centres = (torch.arange(cells) + 0.5) / cells
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    shapes = [(size / math.sqrt(ratio), size * math.sqrt(ratio)) for ratio in RATIOS]
    each = [torch.stack((y, x, torch.full_like(y, h), torch.full_like(x, w)), -1) for h, w in shapes]
    return torch.stack(each, 2).reshape(-1, 4)


class Head(nn.Module):
    """Features [1, channels, H, W] -> offsets [1, H * W * ratios, 4] and logits [1, H * W * ratios, classes]."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.offsets = nn.Conv2d(channels, 4 * len(RATIOS), 3, padding=1)
        self.logits = nn.Conv2d(channels, classes * len(RATIOS), 3, padding=1)
        self.classes = classes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        offsets, logits = (layer(x).permute(0, 2, 3, 1) for layer in (self.offsets, self.logits))
        return offsets.reshape(1, -1, 4), logits.reshape(1, -1, self.classes)


class Detector(nn.Module):
    """Picture [1, 3, image, image] -> boxes [found, 4] as (y1, x1, y2, x2), scores [found], classes [found]."""

    anchors: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, shape.stem, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(shape.stem),
            nn.ReLU6(),
        )
        self.body, self.heads = nn.ModuleList(), nn.ModuleList()
        self.reads = shape.heads
        channels, cells = shape.stem, shape.image // 2
        grids: list[Tensor] = []
        for number, (outputs, stride) in enumerate(shape.widths, start=1):
            self.body.append(separable(channels, outputs, stride))
            channels, cells = outputs, cells // stride
            if number in shape.heads:
                self.heads.append(Head(channels, shape.classes))
                grids.append(anchors(cells, shape.sizes[len(grids)]))
        self.register_buffer("anchors", torch.cat(grids)[None], persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stem(x)
        found: list[tuple[Tensor, Tensor]] = []
        for number, layer in enumerate(self.body, start=1):
            x = layer(x)
            if number in self.reads:
                found.append(self.heads[len(found)](x))
        offsets = torch.cat([each for each, _ in found], 1) * 0.1
        scores = torch.softmax(torch.cat([each for _, each in found], 1), dim=-1).transpose(1, 2)
        centre = self.anchors[..., :2] + offsets[..., :2] * self.anchors[..., 2:]
        half = self.anchors[..., 2:] * torch.exp(offsets[..., 2:] * 2) / 2
        boxes = torch.cat((centre - half, centre + half), -1)
        kept = Suppress.apply(boxes, scores)
        kind, box = kept[:, 1], kept[:, 2]
        found_scores = scores.reshape(-1).index_select(0, kind * boxes.shape[1] + box)
        return boxes[0].index_select(0, box), found_scores, kind


def build(*, batch: int, small: bool) -> Workload:
    """float32 `image` [1, 3, 256, 256] -> float32 `boxes` [found, 4] and `scores` [found], int64 `classes` [found]."""
    if batch != 1:
        raise ValueError("the detector takes one picture at a time")
    shape = SMALL if small else FULL
    model = Detector(shape).eval()
    randomize(model, seed=14)
    with torch.no_grad():
        for head in model.heads:
            assert isinstance(head, Head)
            head.logits.weight.mul_(3.0)  # sure of some, so that some are likely enough
    names = ("boxes", "scores", "classes")
    return Workload(
        model,
        ("image",),
        names,
        gaussian_inputs(1, 3, shape.image, shape.image),
        dynamic={name: {0: "found"} for name in names},
    )
