"""The shape of Winograd kernels as their C function takes it; see `winograd.h`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage.backends.native_kernels.geometry import shape_struct
from collage.backends.native_kernels.kernel import SharedKernel
from collage.backends.native_kernels.limits import winograd_limits
from collage.graph.storage import BLOCK
from collage.native.packed import Packed

Shape = shape_struct(
    *("batch", "in_blocks", "out_blocks", "in_depth", "out_depth", "depth_taps", "pad_depth"),
    *(("rows", 9), ("columns", 9), ("from", 5), ("to", 5)),
    *("points", "chunk_tiles", "chunk_depths", "by_channels", "shares"),
)
"""``collage_winograd_shape``."""


def load(packed: Packed, threads: int) -> SharedKernel:
    """A kernel whose shares read the same weights, and transform in memory of their own."""
    return SharedKernel(
        "collage_winograd",
        Shape,
        packed,
        threads,
        limits=winograd_limits,
        constants=[packed.arrays["weights"], packed.arrays["bias"]],
        scratch_bytes=scratch_bytes,
    )


def scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """The size of a share's transformed input and products (``collage_winograd_scratch``)."""
    planes = min(numbers["chunk_depths"] + numbers["depth_taps"] - 1, numbers["in_depth"])
    inside = numbers["in_blocks"] * numbers["chunk_tiles"] | 1
    outside = numbers["out_blocks"] * numbers["chunk_tiles"] * numbers["chunk_depths"] | 1
    return 4 * BLOCK * int(numbers["points"]) ** 2 * int(planes * inside + outside)
