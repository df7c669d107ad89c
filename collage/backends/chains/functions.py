"""The functions that a chain knows, numbered as oneDNN numbers them (``dnnl_alg_kind_t``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class DnnlAlgorithm(IntEnum):
    """The numbers of ``dnnl_alg_kind_t``."""

    CONVOLUTION = 0x1
    DECONVOLUTION = 0xA
    RELU = 0x20
    """The slope for negative inputs is alpha."""
    TANH = 0x21
    ELU = 0x22
    SQUARE = 0x23
    ABS = 0x24
    SQRT = 0x25
    LINEAR = 0x26
    """alpha x + beta."""
    SIGMOID = 0x29
    EXP = 0x2A
    GELU_TANH = 0x2B
    SWISH = 0x2C
    """x sigmoid(alpha x)."""
    LOG = 0x2D
    CLIP = 0x2E
    """max(alpha, min(beta, x))."""
    POWER = 0x30
    """alpha x^beta."""
    GELU_ERF = 0x31
    ROUND = 0x32
    HARD_SWISH = 0x34
    """x max(0, min(1, alpha x + beta))."""
    MAX_POOL = 0x1FF
    AVERAGE_POOL_WITH_PADDING = 0x2FF
    AVERAGE_POOL = 0x3FF
    ADD = 0x1FFF0
    MULTIPLY = 0x1FFF1
    MAXIMUM = 0x1FFF2
    MINIMUM = 0x1FFF3
    DIVIDE = 0x1FFF4
    SUBTRACT = 0x1FFF5
    SOFTMAX = 0x30000
    LOG_SOFTMAX = 0x30001


@dataclass(frozen=True)
class Eltwise:
    """A function of each element of the result."""

    algorithm: int
    alpha: float = 0.0
    beta: float = 0.0
