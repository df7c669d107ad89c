"""The built-in backend for operators that do no work: a reshape is another name for the same memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from collage.backends.base import (
    VIEW,
    Availability,
    Backend,
    BackendKind,
    BuildOptions,
    Call,
    Kernel,
    UnsupportedError,
)
from collage.graph.dataflow import Array

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.patterns.match import MatchSource


class View(Backend):
    """Reshapes, flattens, squeezes. The memory plan gives input and output one buffer, and nothing runs."""

    name = VIEW
    kind = BackendKind.LIBRARY

    def available(self) -> Availability:
        """Always."""
        return Availability(version="1")

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """Single view operators."""
        from collage.patterns.regions import ViewRule

        return (ViewRule(),)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Only the two shapes are needed."""
        if len(subgraph.inputs) != 1 or len(subgraph.outputs) != 1:
            raise UnsupportedError("a view has one input and one output")
        return json.dumps({"shape": subgraph.output_types[0].shape}).encode()

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """A copy, for the case that the memory plan could not share the buffer."""
        return _CopyKernel()


class _CopyKernel(Kernel):
    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        source, target = inputs[0].reshape(-1), outputs[0].reshape(-1)
        return lambda: np.copyto(target, source)
