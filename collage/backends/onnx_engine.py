"""What engines that take ONNX models have in common: what they are offered, and their artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from collage.backends.base import Availability, UnsupportedError
from collage.backends.engine import Engine
from collage.errors import ModelError
from collage.graph.decisions import decides
from collage.kernel.model_artifact import joined
from collage.kernel.options import BuildOptions

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage.frontend.subgraph import Subgraph
    from collage.patterns.match import MatchSource

PROFILED_RUNS = 20

EXACT_QUOTIENTS = "Round no quotients"
"""A note in the model of a part whose quotients another part may round. The engine must divide for them."""


def with_quotients_noted(model: ModelProto) -> ModelProto:
    """The model, or a copy of it with that note if it rounds or compares quotients."""
    from collage.frontend.rewrite.rounded_quotients import rounded_quotients
    from collage.frontend.rewrite.value_types import Types

    if not rounded_quotients(model.graph, Types.of(model.graph)):
        return model
    noted = type(model)()
    noted.CopyFrom(model)
    noted.metadata_props.add(key="collage", value=EXACT_QUOTIENTS)
    return noted


class OnnxEngine(Engine):
    """An engine whose Python package has the backend's name; a subclass says how it loads an ONNX model."""

    requirement: str
    """What pip has to be told to install it."""

    def available(self) -> Availability:
        """Whether its package is installed. The package is not imported for that."""
        try:
            return Availability(version=metadata.version(self.name))
        except metadata.PackageNotFoundError:
            return Availability(reason=f"not installed: pip install {self.requirement}")

    def misfit(self, version: str, same_cpu: bool) -> str:
        """An ONNX model runs on any version."""
        return self.available().reason

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """Single operators, fused chains, whole ONNX nodes that it accepts, and windows."""
        from collage.patterns.regions import EngineRule, FaultRule, OnnxNodeRule, WindowRule

        rules = (EngineRule(), OnnxNodeRule(self.accepts), WindowRule())
        return [FaultRule(rule, self.name, self.faults) for rule in rules]

    def accepts(self, domain: str, op_type: str) -> bool | str:
        """Whether the engine may be offered an ONNX operator, or why not."""
        return True

    def faults(self, model: ModelProto) -> Mapping[int, str]:
        """The model's nodes, by index, that the engine gets wrong on ordinary inputs, with the reasons.

        It is for faults that samples may miss. Others are seen when kernels, engines and modules are checked.
        """
        return {}

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """The artifact that ``compile_onnx`` makes of the subgraph.

        Raises UnsupportedError also if the subgraph has no ONNX form, or the engine would compute it wrong.
        """
        from collage.frontend.export.to_onnx import ExportError

        found = subgraph.model.analysed(self.faults)
        _refuse(next((found[n.source] for n in subgraph.operators if n.source in found), ""))
        try:
            model = subgraph.to_onnx(apart=self.takes_apart)
        except ExportError as error:
            raise UnsupportedError(str(error)) from error
        if any(node.op == "divide" and decides(subgraph.model.graph, node) for node in subgraph.operators):
            model.metadata_props.add(key="collage", value=EXACT_QUOTIENTS)
        return self.compile_onnx(model, options)

    def codegen_model(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The artifact that ``compile_onnx`` makes of the model. Raises UnsupportedError also for ``faults``."""
        OnnxEngine.check_proto(self, model)
        return self.compile_onnx(model, options)

    def check_model(self, model: bytes) -> None:
        """Raises UnsupportedError if the engine gets the model wrong (see ``faults``)."""
        import onnx

        self.check_proto(onnx.load_model_from_string(model))

    def check_proto(self, model: ModelProto) -> None:
        """Raises UnsupportedError if the engine gets the model wrong (see ``faults``)."""
        _refuse(next(iter(self.faults(model).values()), ""))

    def compile_onnx(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The model as an artifact. Raises UnsupportedError when it is too large."""
        return serialised(model)


def _refuse(fault: str) -> None:
    if fault:
        raise UnsupportedError(f"the engine would be wrong: {fault}")


def serialised(model: ModelProto) -> bytes:
    """The model as an artifact (see ``collage.kernel.model_artifact``). Raises UnsupportedError when it is too large.

    It is one protobuf, unless its weights are apart.
    """
    from collage.frontend.model_artifacts import artifact_of

    try:
        found = artifact_of(model)
    except ModelError as error:
        raise UnsupportedError(str(error)) from error
    return joined(found)
