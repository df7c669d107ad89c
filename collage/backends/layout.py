"""The built-in backend that changes layouts: a value that one kernel leaves blocked, another wants plain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import LAYOUT, Availability, Backend, BackendKind, UnsupportedError
from collage.core.typed import MalformedError
from collage.graph.dataflow import TensorType
from collage.graph.layout import Layout
from collage.graph.read_type import read_type
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.patterns.match import MatchSource


class LayoutChange(Backend):
    """oneDNN's reorders on Collage's team. The search asks for them by type and layouts, not by subgraph."""

    name = LAYOUT
    kind = BackendKind.LIBRARY

    def available(self) -> Availability:
        """As oneDNN is. Without it, kernels that differ in layout cannot be combined."""
        from collage.backends.onednn import OneDnn

        return OneDnn().available()

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """None: no operator of a model changes a layout."""
        return ()

    def on_team(self) -> bool:
        """Yes."""
        return True

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Never: see ``artifact``."""
        raise UnsupportedError("conversions of layouts stand between operators")

    @staticmethod
    def artifact(kind: TensorType, source: Layout, target: Layout) -> bytes:
        """The conversion of a value of logical type ``kind``, for ``load``."""
        return json.dumps([kind.shape, kind.dtype, source.value, target.value]).encode()

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """The kernel, split over the team's threads. Raises ValueError for what is no conversion."""
        from collage.backends.onednn_kernels.reorder import reorder_kernel

        try:
            shape, dtype, source, target = json.loads(bytes(artifact))
        except RecursionError:
            raise MalformedError("it is nested too deeply") from None
        return reorder_kernel(read_type(shape, dtype), Layout(source), Layout(target), options.threads)
