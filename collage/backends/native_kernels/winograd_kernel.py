"""Binding Winograd kernels to buffers; see `winograd.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from collage.backends.native_kernels.algorithm import Packed, shared_out, structure
from collage.backends.onednn_kernels.scratch import aligned, shared_scratch
from collage.graph.dataflow import Array
from collage.graph.layout import BLOCK
from collage.native import NativeKernel, Step

_Axis = ctypes.c_int64 * 9
_Steps = ctypes.c_int64 * 5
_WHOLES = "batch in_blocks out_blocks in_depth out_depth depth_taps pad_depth".split()


class Shape(ctypes.Structure):
    """``collage_winograd_shape``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _WHOLES),
        ("rows", _Axis),
        ("columns", _Axis),
        ("from", _Steps),
        ("to", _Steps),
        *(
            (name, ctypes.c_int64)
            for name in ("points", "chunk_tiles", "chunk_depths", "by_channels", "shares")
        ),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


class _Buffers(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("src", "weights", "bias", "residual", "dst", "scratch")
    )


class WinogradKernel(NativeKernel):
    """Shares that read the same weights, and transform in memory of their own."""

    def __init__(self, packed: Packed, threads: int) -> None:
        super().__init__(threads)
        self._numbers: Mapping[str, Any] = packed.numbers
        self._weights, self._bias = packed.arrays["weights"], packed.arrays["bias"]
        self._shape = structure(Shape, packed.numbers)

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """One step; a share that may run beside other kernels has scratch memory that is its own."""
        shares, residual = self._numbers["shares"], self._numbers["residual"]
        nbytes = scratch_bytes(self._numbers)
        scratch = [
            shared_scratch(self.threads, i, nbytes) if shares == self.threads else aligned(nbytes)
            for i in range(shares)
        ]
        buffers = [
            _Buffers(
                inputs[self._numbers["data"]].ctypes.data,
                self._weights.ctypes.data,
                self._bias.ctypes.data,
                None if residual is None else inputs[residual].ctypes.data,
                outputs[0].ctypes.data,
                each.ctypes.data,
            )
            for each in scratch
        ]
        keep = (self, tuple(inputs), tuple(outputs), tuple(scratch))
        return [shared_out("collage_winograd", self._shape, buffers, keep)]


def scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """What a share transforms in: the input's points, and the products (``collage_winograd_scratch``)."""
    planes = min(numbers["chunk_depths"] + numbers["depth_taps"] - 1, numbers["in_depth"])
    inside = numbers["in_blocks"] * numbers["chunk_tiles"] | 1
    outside = numbers["out_blocks"] * numbers["chunk_tiles"] * numbers["chunk_depths"] | 1
    return 4 * BLOCK * int(numbers["points"]) ** 2 * int(planes * inside + outside)
