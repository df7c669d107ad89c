"""The built-in backend for operators that do no work.

A reshape gives the same memory another shape. The parts of a concatenation are made in its place, and the results of a
split are parts of its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from collage.backends.base import VIEW, Availability, Backend, BackendKind, UnsupportedError
from collage.graph.dataflow import Array
from collage.kernel.device_array import on_device
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.patterns.match import MatchSource


class View(Backend):
    """Reshapes, concatenations and splits. The memory plan gives input and output one buffer, and nothing runs."""

    name = VIEW
    kind = BackendKind.LIBRARY

    def available(self) -> Availability:
        """Views are always available."""
        return Availability(version="1")

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The rule that finds single view operators."""
        from collage.patterns.regions import ViewRule

        return (ViewRule(),)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """An empty artifact, since nothing is needed besides the buffers."""
        if not (subgraph.inputs and subgraph.outputs) or 1 not in (
            len(subgraph.inputs),
            len(subgraph.outputs),
        ):
            raise UnsupportedError("a view has one input or one output")
        return b""

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """A copy, for where the memory plan could not share the buffer."""
        return _CopyKernel()


class _CopyKernel(Kernel):
    """Copies the elements of all inputs, one after another, to the outputs, one after another."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        sources, targets = ([each.reshape(-1) for each in arrays] for arrays in (inputs, outputs))
        whole = len(targets) == 1
        kinds = {each.dtype for each in (*inputs, *outputs)}
        sizes = [sum(each.size for each in arrays) for arrays in (sources, targets)]
        if 1 not in (len(sources), len(targets)) or sizes[0] != sizes[1] or len(kinds) > 1:
            raise ValueError(f"a view of {sizes[0]} elements has {sizes[1]}")
        parts = sources if whole else targets
        joined = targets[0] if whole else sources[0]
        ends = [0, *accumulate(part.size for part in parts)]
        pieces = [joined[begin:end] for begin, end in pairwise(ends)]
        pairs = list(zip(pieces, parts, strict=True))
        if on_device(joined):
            from collage.backends.cuda_kernels.copies import CopiesOnDevice

            return CopiesOnDevice([(a, b) if whole else (b, a) for a, b in pairs])

        def run() -> None:
            for piece, part in pairs:
                if whole:
                    np.copyto(piece, part)
                else:
                    np.copyto(part, piece)

        return run
