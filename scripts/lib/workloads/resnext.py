"""ResNeXt-50 32x4d (Xie, Girshick, Dollar, Tu, He: "Aggregated Residual Transformations for Deep Neural
Networks", CVPR 2017, table 1): a ResNet-50 whose 3 x 3 convolutions have 32 groups, in the form of figure 3(c)."""

from __future__ import annotations

from dataclasses import replace

from .residual import Shape, workload
from .workload import Workload

FULL = Shape(
    extents=(224, 224),
    stem=64,
    stem_stride=(2, 2),
    width=128,
    expansion=2,
    groups=32,  # the cardinality
    blocks=(3, 4, 6, 3),
    classes=1000,
)
SMALL = replace(FULL, extents=(64, 64), stem=8, width=16, groups=4, blocks=(1, 1, 2, 1), classes=10)


def build(*, batch: int, small: bool) -> Workload:
    """float32 `image` [batch, 3, 224, 224] -> float32 `logits` [batch, 1000]."""
    return workload(SMALL if small else FULL, batch=batch, input_name="image", seed=5)
