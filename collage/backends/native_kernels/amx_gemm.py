"""Products with a constant matrix of bfloat16 on AMX, the processor's matrix unit; see `amx_gemm.cpp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.native_kernels.bf16_gemm import Bf16Gemm
from collage.backends.native_kernels.streamed import PANEL, TILES
from collage.backends.native_kernels.task import NativeTask
from collage.errors import ModuleFileError
from collage.graph.storage import BLOCK
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.kernel_library import amx_problem
from collage.native.packed import Packed

_TILE_ROWS, _PAIRS = 32, 16
_MOST_CHUNK = 256
_CHUNK_BYTES = 1 << 20
"""Bytes of rows that are multiplied with a panel. They and the panel come from the L2 cache again and again."""


class AmxGemm(Bf16Gemm):
    """Takes what ``Bf16Gemm`` takes, with weights in the same order."""

    name = "amx_gemm"

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """The splits of float32, each with float32 and bfloat16 data and results."""
        if problem := amx_problem():
            raise UnsupportedError(problem)
        return self.of_kinds([TILES], [""], task, build)

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The same as for dot products, with more rows at a time."""
        packed = super().pack(task, build)
        return replace(packed, numbers={**packed.numbers, "row_chunk": _row_chunk(packed.numbers["depth"])})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read one array of weights. Raises ModuleFileError where this CPU cannot run it."""
        if problem := amx_problem():
            raise ModuleFileError(
                f"it has kernels for processors with AMX, and {problem}: compile the model here."
            )
        return self.kernel(packed, threads)

    @staticmethod
    def scratch_bytes(numbers: Mapping[str, Any]) -> int:
        """The size of the sums, of the last pairs of a panel, and of rows that are copied (`amx_gemm.h`)."""
        row = _PAIRS * -(-numbers["depth"] // (2 * _PAIRS))
        floats: int = (_TILE_ROWS + _PAIRS) * PANEL * BLOCK + numbers["row_chunk"] * row
        return 4 * floats


def _row_chunk(depth: int) -> int:
    """The number of rows that are multiplied with a panel at a time, whole tiles."""
    chunk: int = _CHUNK_BYTES // (2 * depth) // _TILE_ROWS * _TILE_ROWS
    return max(_TILE_ROWS, min(chunk, _MOST_CHUNK))
