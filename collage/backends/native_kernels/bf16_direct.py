"""The direct convolution of values that are stored as bfloat16, with float32 arithmetic and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collage.backends.base import UnsupportedError
from collage.backends.native_kernels.direct import DirectConv
from collage.backends.native_kernels.limits import Arrays, Needs, Numbers, direct_limits
from collage.backends.native_kernels.task import NativeTask
from collage.errors import ModuleFileError
from collage.graph.storage import BF16, narrowed, widened
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.kernel_library import narrow_problem
from collage.native.packed import Packed


class Bf16DirectConv(DirectConv):
    """Takes what the direct convolution takes, so that narrow groups need no conversions between narrow kernels."""

    name = "bf16_direct_conv"
    precision = BF16
    function = "collage_bf16_direct_conv"

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Return the variants of float32, with narrow storages on both sides."""
        if problem := narrow_problem():
            raise UnsupportedError(problem)
        return [
            Variant(
                tuple(narrowed(s, BF16) for s in each.inputs),
                tuple(narrowed(s, BF16) for s in each.outputs),
                each.split,
                BF16,
            )
            for each in super().variants(task, build)
        ]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The same as for float32, since steps count elements and the weights stay wide."""
        variant = build.variant
        inputs, outputs = (tuple(map(widened, side)) for side in (variant.inputs, variant.outputs))
        return super().pack(task, replace(build, variant=Variant(inputs, outputs, variant.split)))

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read the same weights. Raises ModuleFileError where this CPU cannot run it."""
        if problem := narrow_problem():
            raise ModuleFileError(f"{problem}: compile the model here.")
        return super().load(packed, threads)

    @staticmethod
    def limits(numbers: Numbers, arrays: Arrays) -> Needs:
        """The limits of the kernel, whose elements count as half a float."""
        needs = direct_limits(numbers, arrays)
        return Needs(needs.data / 2, needs.result / 2)
