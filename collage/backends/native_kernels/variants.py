"""What algorithms have in common when they offer variants."""

from __future__ import annotations

from collage.backends.native_kernels.task import NativeTask
from collage.graph.storage import Storage
from collage.kernel.options import Variant

SMALL_FLOP = 40_000_000
"""Below this, one thread may do all of it: some 100 us, which can run beside another branch of the model."""


def in_layout(task: NativeTask, layout: Storage, split: str) -> Variant:
    """The variant with everything that has the data's or the result's shape in that layout."""
    return Variant((layout,) * len(task.chain.inputs), (layout,), split)
