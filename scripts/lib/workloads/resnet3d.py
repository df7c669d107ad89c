"""3D ResNet-50 for video (Hara, Kataoka, Satoh: "Can Spatiotemporal 3D CNNs Retrace the History of 2D CNNs
and ImageNet?", CVPR 2018, table 1 and figure 3), with shortcuts of type B (projections)."""

from __future__ import annotations

from dataclasses import replace

from .residual import Shape, workload
from .workload import Workload

FULL = Shape(
    extents=(16, 112, 112),
    stem=64,
    stem_stride=(1, 2, 2),
    width=64,
    expansion=4,
    groups=1,
    blocks=(3, 4, 6, 3),
    classes=400,
)
SMALL = replace(FULL, extents=(8, 32, 32), stem=4, width=4, blocks=(1, 1, 2, 1), classes=10)


def build(*, batch: int, small: bool) -> Workload:
    """float32 `clip` [batch, 3, 16, 112, 112] -> float32 `logits` [batch, 400]."""
    return workload(SMALL if small else FULL, batch=batch, input_name="clip", seed=4)
