"""BERT-large: 1.3 GB of weights, for what large models cost beside their kernels."""

from __future__ import annotations

from .bert import Shape, of_shape
from .workload import Workload

FULL = Shape(layers=24, hidden=1024, heads=16, feed_forward=4096, tokens=64, vocabulary=30522, positions=512)
SMALL = Shape(layers=3, hidden=64, heads=4, feed_forward=256, tokens=16, vocabulary=512, positions=32)


def build(*, batch: int, small: bool) -> Workload:
    """int64 `input_ids`, `attention_mask`, `token_type_ids` [batch, 64] -> float32 `last_hidden_state`
    [batch, 64, 1024] and `pooler_output` [batch, 1024]."""
    return of_shape(SMALL if small else FULL, batch)
