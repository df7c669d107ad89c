"""The model whose candidates are measured, and the other forms of it that engines and guards need."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import onnx

from collage.backends.base import Backend
from collage.frontend.model import Model
from collage.frontend.original import AsLoaded
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Node
from collage.graph.domains import Domains
from collage.graph.magnitudes import Magnitudes, can_be_infinite, can_be_scanned
from collage.graph.storage import steps_of
from collage.kernel.frames import Framed
from collage.kernel.model_artifact import hashed
from collage.kernel.options import ALL_PLAIN, DYNAMIC_INT8
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.fingerprint import original_digest
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind


@dataclass(frozen=True, eq=False)
class MeasuredModel:
    """A model, and the forms of it that engines and guards need.

    ``original`` is the model as its author wrote it (see ``as_region``); without it no engine is measured on it.
    ``as_loaded`` is the model that answers inputs which guarded kernels are not right on. Where ``guards`` is False,
    kernels that are right on finite numbers only cannot be guarded, and are of no use. ``extraordinary`` are values
    that nothing can be guarded by, since a scan of them would find something in every call; ``Measurer.verify`` adds
    them.
    """

    model: Model
    original: onnx.ModelProto | None = None
    as_loaded: AsLoaded | None = None
    guards: bool = True
    extraordinary: set[int] = field(default_factory=set, init=False)
    _subgraphs: dict[tuple[int, ...], Subgraph] = field(default_factory=dict, init=False, repr=False)
    _lost: dict[tuple[tuple[int, ...], bool], Node | None] = field(
        default_factory=dict, init=False, repr=False
    )

    def subgraph(self, nodes: tuple[int, ...]) -> Subgraph:
        """The subgraph of these nodes. It is made once, since it keeps its digest."""
        if nodes not in self._subgraphs:
            self._subgraphs[nodes] = Subgraph(self.model, nodes)
        return self._subgraphs[nodes]

    @cached_property
    def original_digest(self) -> str:
        """A hash of the original, or "" without one."""
        return "" if self.original is None else original_digest(self.original)

    @cached_property
    def serialised(self) -> bytes | Framed | None:
        """The model as it was loaded, as an artifact, for modules with guarded kernels.

        None where it was not given, or is too large.
        """
        return self.as_loaded.serialised() if self.as_loaded is not None and self.guards else None

    @cached_property
    def serialised_digest(self) -> str | None:
        """A hash of the model as it was loaded, weights and all; None where ``serialised`` is."""
        return None if self.serialised is None else hashed(self.serialised).hexdigest()

    def describe(self, request: CandidateRequest) -> str:
        """The request in words for people: ``conv2d+add+relu (blocked)``."""
        if request.original:
            return ", ".join(filter(None, ("the model as written", request.profile)))
        text = str(self.subgraph(request.nodes))
        return text if request.variant == ALL_PLAIN else f"{text} ({request.variant})"

    def usable(self, request: CandidateRequest, outcome: Outcome, backend: Backend) -> Outcome:
        """The outcome, or a rejection of a kernel that is right on finite numbers only and cannot be guarded here.

        ``backend`` is that of the request.
        """
        if not isinstance(outcome, Measurement):
            return outcome
        subgraph = self.subgraph(request.nodes)
        if outcome.finite_only and (why := self._why_not_guarded(subgraph)):
            return Rejection(RejectionKind.INACCURATE, f"wrong on NaN or infinities, and {why}")
        steps = request.variant.precision == DYNAMIC_INT8 or any(map(steps_of, request.variant.outputs))
        if outcome.finite_only or steps or not backend.keeps_nan:
            about = request.nodes, steps
            if about not in self._lost:  # outcomes are looked up many times
                self._lost[about] = self._domains.lost(subgraph.operators, in_steps=steps)
            if (node := self._lost[about]) is not None:
                return Rejection(
                    RejectionKind.INACCURATE,
                    f"its {node.op} may make NaN of finite numbers, which it may lose",
                )
        return outcome

    def _why_not_guarded(self, subgraph: Subgraph) -> str:
        """The reason why no guard can be put before the subgraph, or "" where one can."""
        types = {kind.dtype for kind in subgraph.input_types}
        unknown = sorted(t for t in types if can_be_infinite(t) and not can_be_scanned(t))
        if not self.guards:
            return "the model's constants have 2 GiB or more, too much to be kept for these"
        if unknown:
            return f"nothing scans {', '.join(unknown)} for these"
        if not self.extraordinary.isdisjoint(subgraph.inputs):
            return "it reads some, or huge numbers, in the model's usual values"
        if self._magnitudes.overflows(subgraph.operators):
            return "its weights are so large that finite numbers may become infinite inside"
        return ""

    @cached_property
    def _magnitudes(self) -> Magnitudes:
        return Magnitudes(self.model.graph)

    @cached_property
    def _domains(self) -> Domains:
        return Domains(self.model.graph, self.model.inner_operators)
