"""Trees, encoders and linear models on Collage's own kernels: an engine for models that map rows to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from collage.backends.base import Availability
from collage.backends.onnx_engine import OnnxEngine
from collage.kernel.kernel import Call, Kernel, Session
from collage.kernel.options import BuildOptions
from collage.native.kernel_library import REVISION
from collage.native.library import core_problem
from collage.native.table import table_problem

if TYPE_CHECKING:
    from collage.graph.dataflow import Array
    from collage.kernel.frames import Artifact
    from collage.patterns.match import MatchSource

_WALKED = "walked trees"
"""The profile whose rows walk through trees, from the root to a leaf, instead of visiting all nodes."""
_ONE_THREAD = "one thread"


class Tables(OnnxEngine):
    """Takes operators of ONNX's machine-learning set, and what is around them, for any number of rows.

    Rows run in blocks, whose columns stay in a core's cache from the first operator to the last one.
    """

    name = "tables"
    own = True
    keeps_nan = True

    def available(self) -> Availability:
        """The revision of the kernels, or why they cannot run here."""
        problem = core_problem() or table_problem()
        return Availability(reason=problem) if problem else Availability(version=f"kernels {REVISION}")

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """Whole ONNX nodes of the machine-learning operators."""
        from collage.patterns.regions import OnnxNodeRule

        return (OnnxNodeRule(self.accepts),)

    def accepts(self, domain: str, op_type: str) -> bool | str:
        """Whether the kernels may take the operator."""
        from collage.backends.tables_kernels.session import OPERATORS

        return domain == "ai.onnx.ml" and ("ml", op_type) in OPERATORS

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        """What suits each tree best, and all trees walked; and one thread where there are several."""
        return ("", _WALKED, *([_ONE_THREAD] if options.threads > 1 else ()))

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """The kernels on an ONNX model."""
        from collage.frontend.engine_models import in_one_piece
        from collage.kernel.model_artifact import model_artifact

        return _SessionKernel(self.session(in_one_piece(model_artifact(artifact)), options))

    def session(self, model: Any, options: BuildOptions) -> Session:
        """The model as a program. Raises UnsupportedError for what the kernels do not take."""
        from collage.backends.tables_kernels.beside import session_of
        from collage.frontend.messages import parsed

        if options.profile == _ONE_THREAD:
            options = replace(options, threads=1)
        return session_of(parsed(model), options, walk_all=options.profile == _WALKED)


class _SessionKernel(Kernel):
    def __init__(self, session: Session) -> None:
        self._session = session

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        call = self._session.bind(inputs, outputs)
        if call is None:
            raise ValueError("strings and maps are in no buffers")
        return call
