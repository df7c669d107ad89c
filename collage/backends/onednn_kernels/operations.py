"""Primitives as values: each operation has the tensors and parameters of a kind of primitive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from collage.backends.chains.functions import Eltwise
from collage.backends.onednn_kernels.description import Description


@dataclass(frozen=True)
class Binary:
    """A post-op that combines the result with another tensor, which broadcasts to it."""

    algorithm: int
    operand: Description


PostOp: TypeAlias = "Eltwise | Binary"
"""What a primitive does to its result before it stores it."""


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
    """(batch..., M, K) times (batch..., K, N). All are of one rank, and ``bias`` broadcasts to the result."""

    src: Description
    weights: Description
    bias: Description | None
    dst: Description
    post_ops: tuple[PostOp, ...] = ()


@dataclass(frozen=True)
class Pooling:
    """The maximum or average of windows. ``dilation`` counts from 1."""

    algorithm: int
    src: Description
    dst: Description
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_begin: tuple[int, ...]
    pad_end: tuple[int, ...]
    post_ops: tuple[PostOp, ...] = ()


@dataclass(frozen=True)
class Function:
    """An eltwise algorithm on each element."""

    algorithm: int
    alpha: float
    beta: float
    src: Description
    dst: Description
    post_ops: tuple[PostOp, ...] = ()


@dataclass(frozen=True)
class Combination:
    """A binary algorithm on two tensors, of which ``second`` broadcasts to ``src``."""

    algorithm: int
    src: Description
    second: Description
    dst: Description
    post_ops: tuple[PostOp, ...] = ()


@dataclass(frozen=True)
class Softmax:
    """Softmax or its logarithm over one axis."""

    algorithm: int
    src: Description
    dst: Description
    axis: int
    post_ops: tuple[PostOp, ...] = ()


@dataclass(frozen=True)
class LayerNorm:
    """Normalisation over the last axis, with factors and terms for each of its elements."""

    src: Description
    dst: Description
    epsilon: float
    post_ops: tuple[PostOp, ...] = ()


@dataclass(frozen=True)
class Reorder:
    """A copy between layouts."""

    src: Description
    dst: Description
    post_ops: tuple[PostOp, ...] = ()


@dataclass(frozen=True)
class Rescale:
    """A copy between layouts and dtypes with every number multiplied by the same one, before it is rounded."""

    src: Description
    dst: Description
    post_ops: tuple[PostOp, ...] = ()


Operation: TypeAlias = (
    "Convolution | MatMul | Pooling | Function | Combination | Softmax | LayerNorm | Reorder | Rescale"
)
