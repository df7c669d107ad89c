"""What engines that take ONNX models have in common: what they are offered, and their artifact."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from collage.backends.base import Availability, Backend, BackendKind, BuildOptions, UnsupportedError

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage.frontend.subgraph import Subgraph
    from collage.patterns.match import MatchSource

MAX_BYTES = 2**31 - 1
"""Largest model protobuf can serialise."""


class OnnxEngine(Backend):
    """An engine whose Python package has the backend's name; a subclass says how it loads an ONNX model."""

    kind = BackendKind.ENGINE
    requirement: str
    """What pip is told to install it."""

    def available(self) -> Availability:
        """Whether its package is installed; it is not imported yet."""
        try:
            return Availability(version=metadata.version(self.name))
        except metadata.PackageNotFoundError:
            return Availability(reason=f"not installed: pip install {self.requirement}")

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """Single operators, fused chains, whole ONNX nodes that it accepts, and windows."""
        from collage.patterns.regions import EngineRule, OnnxNodeRule, WindowRule

        return (EngineRule(), OnnxNodeRule(self.accepts), WindowRule())

    def accepts(self, domain: str, op_type: str) -> bool | str:
        """Whether the engine may be offered an ONNX operator, or why not."""
        return True

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """The subgraph as a serialised ONNX model; UnsupportedError when it has none or it is too large."""
        from collage.frontend.to_onnx import ExportError

        try:
            model = subgraph.to_onnx()
        except ExportError as error:
            raise UnsupportedError(str(error)) from None
        return self.codegen_model(model, options)

    def takes_models(self) -> bool:
        """Always."""
        return True

    def codegen_model(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The serialised model; UnsupportedError when it is too large."""
        if model.ByteSize() >= MAX_BYTES:
            raise UnsupportedError("the weights exceed the 2 GiB that one ONNX protobuf can hold")
        data: bytes = model.SerializeToString()
        return data
