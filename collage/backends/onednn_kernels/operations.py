"""Primitives in words: each operation names its tensors and parameters, and where the C API wants them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from collage.backends.onednn_kernels.description import Description
from collage.backends.onednn_kernels.post_ops import PostOp


@dataclass(frozen=True)
class Convolution:
    """``weights`` are (O, I, spatial...), with a leading axis for groups when there are any.

    ``dilation`` counts from 1, as in ONNX. ``transposed`` makes it a deconvolution, with the same shapes.
    """

    src: Description
    weights: Description
    bias: Description | None
    dst: Description
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_begin: tuple[int, ...]
    pad_end: tuple[int, ...]
    transposed: bool = False
    post_ops: tuple[PostOp, ...] = ()


@dataclass(frozen=True)
class MatMul:
    """(batch..., M, K) times (batch..., K, N); all of one rank, and ``bias`` broadcasts to the result."""

    src: Description
    weights: Description
    bias: Description | None
    dst: Description
    post_ops: tuple[PostOp, ...] = ()


@dataclass(frozen=True)
class Reorder:
    """A copy between layouts."""

    src: Description
    dst: Description
    post_ops: tuple[PostOp, ...] = ()


Operation: TypeAlias = "Convolution | MatMul | Reorder"
