"""A kernel as a value: each thread's share is primitives that run on parts of buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from collage.backends.onednn_kernels.operations import Operation

SRC, SRC_1, DST, WEIGHTS, BIAS, SCALE, SHIFT = 1, 2, 17, 33, 41, 51, 52
SCRATCHPAD = 80
SOURCE_SCALE = 4096 | SRC
"""Numbers of a primitive's arguments (``DNNL_ARG_*``). SOURCE_SCALE is the number that the source is multiplied by."""


@dataclass(frozen=True)
class PostOpOperand:
    """The argument that a binary post-op reads, by the post-op's position. Its number depends on oneDNN's version."""

    position: int


@dataclass(frozen=True)
class Input:
    """The kernel's input ``index``, from byte ``offset`` on."""

    index: int
    offset: int = 0


@dataclass(frozen=True)
class Output:
    """The kernel's output ``index``, from byte ``offset`` on."""

    index: int
    offset: int = 0


@dataclass(frozen=True)
class Weight:
    """Constant ``index`` of the artifact."""

    index: int


Buffer: TypeAlias = "Input | Output | Weight"


@dataclass(frozen=True)
class Argument:
    """An argument of a primitive and where it lies."""

    number: int | PostOpOperand
    buffer: Buffer


@dataclass(frozen=True)
class Share:
    """The primitive that one thread runs in a step."""

    operation: Operation
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Plan:
    """Steps in order. The shares of a step run concurrently."""

    steps: tuple[tuple[Share, ...], ...]
