"""Products of rows that choose their matrix, with weights in fewer bits than float32; see `expert_widened.h`.

The weights are widened and multiplied with float32 rows. Dot products of narrow rows would save arithmetic, which sets
the pace only where many rows choose the same matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from collage.backends.chains.chain import Floats
from collage.backends.chains.int8_weights import quantised
from collage.backends.native_kernels import bf16_gemm, int8_gemm
from collage.backends.native_kernels.experts import ExpertKernel, ExpertProduct, Experts
from collage.backends.native_kernels.gemm import split_and_order, words
from collage.backends.native_kernels.streamed import WIDENED, row_chunk
from collage.graph.storage import BF16, BLOCK, INT8
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.packed import Packed


class WidenedExperts(Experts):
    """What both have in common."""

    together: ClassVar[int]
    """The number of weights that lie in 4 bytes."""
    kind: ClassVar[str]
    """What the name of the kernel's function ends with."""
    scaled: ClassVar[bool] = False
    """Whether each column of the weights has a factor."""

    def variants(self, task: ExpertProduct, build: BuildOptions) -> Sequence[Variant]:
        """The splits and orders of float32."""
        return [
            replace(each, split=_with_kind(each.split), precision=self.precision)
            for each in super().variants(task, build)
        ]

    def pack(self, task: ExpertProduct, build: BuildOptions) -> Packed:
        """The shape of the kernel, and what it reads of each expert. The depth is not sliced."""
        depth = task.weights.shape[1]
        return self.packed(task, build, row_chunk(depth), depth)

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel for a team of ``threads`` threads. Raises MalformedError for numbers that do not fit."""
        return ExpertKernel(packed, threads, self.kind, self.together, scaled=self.scaled)


class Bf16Experts(WidenedExperts):
    """The products with matrices of bfloat16."""

    name = "bf16_experts"
    precision = BF16
    together = 2
    kind = "_bf16"

    def one_packed(self, matrix: Floats, deep: int, shares: int) -> Mapping[str, Floats]:
        """One expert's matrix (K, N) in bfloat16, of which two are seen as one float32."""
        return {"weights": bf16_gemm.packed_weights(matrix, shares)}


class Int8Experts(WidenedExperts):
    """The products with matrices of 8 bits. Each column of each expert has a factor of its own, as in ``Int8Gemm``."""

    name = "int8_experts"
    precision = INT8
    together = 4
    kind = "_int8"
    scaled = True

    def one_packed(self, matrix: Floats, deep: int, shares: int) -> Mapping[str, Floats]:
        """One expert's matrix (K, N) in 8 bits, of which four are seen as one float32, and ``scales`` of its columns.

        Raises UnsupportedError for NaN and infinities.
        """
        weights, scales = quantised(matrix)
        return {
            "weights": int8_gemm.packed_weights(weights, shares),
            "scales": np.pad(scales, (0, -len(scales) % BLOCK)),
        }


def _with_kind(text: str) -> str:
    """A split that also says that weights are widened."""
    split, order = split_and_order(text)
    return words(split, WIDENED, order)
