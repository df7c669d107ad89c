"""The model whose candidates are measured, and the other forms of it that engines and guards need."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from collage.frontend.model import Model
from collage.frontend.original import AsLoaded
from collage.frontend.subgraph import Subgraph
from collage.graph.magnitudes import can_be_infinite, can_be_scanned, unguarded
from collage.kernel.frames import Framed
from collage.kernel.model_artifact import hashed
from collage.kernel.options import ALL_PLAIN
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind


@dataclass(frozen=True, eq=False)
class MeasuredModel:
    """A model, and the forms of it that engines and guards need.

    ``as_loaded`` is the model that answers inputs which guarded kernels are not right on. If ``guards`` is False,
    kernels that are right on finite numbers only cannot be guarded, and are of no use. If the compile is ``exact``,
    they are of no use either. ``extraordinary`` are values whose usual numbers a scan does not let through;
    ``Measurer.verify`` adds them.
    """

    model: Model
    as_loaded: AsLoaded | None = None
    guards: bool = True
    exact: bool = False
    extraordinary: set[int] = field(default_factory=set, init=False)
    _subgraphs: dict[tuple[int, ...], Subgraph] = field(default_factory=dict, init=False, repr=False)

    def subgraph(self, nodes: tuple[int, ...]) -> Subgraph:
        """The subgraph of these nodes. It is made once, since it keeps its digest."""
        if nodes not in self._subgraphs:
            self._subgraphs[nodes] = Subgraph(self.model, nodes)
        return self._subgraphs[nodes]

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
        text = str(self.subgraph(request.nodes))
        return text if request.variant == ALL_PLAIN else f"{text} ({request.variant})"

    def usable(self, request: CandidateRequest, outcome: Outcome) -> Outcome:
        """The outcome, or a rejection of a kernel that is right on finite numbers only and cannot be guarded here."""
        if not isinstance(outcome, Measurement):
            return outcome
        if outcome.finite_only and (why := self._why_not_guarded(request)):
            return Rejection(RejectionKind.INACCURATE, f"wrong on NaN, infinities or huge numbers, and {why}")
        return outcome

    def _why_not_guarded(self, request: CandidateRequest) -> str:
        """The reason why a scan of the model's inputs cannot guard the kernel, or "" if it can."""
        if self.exact:
            return "the compile has to be exact"
        if not self.guards:
            return "the model's constants have 2 GiB or more, too much to be kept for these"
        graph = self.model.graph
        types = {graph.type_of(value).dtype for value in graph.inputs}
        if unknown := sorted(t for t in types if can_be_infinite(t) and not can_be_scanned(t)):
            return f"nothing scans {', '.join(unknown)} for these"
        inputs = self.subgraph(request.nodes).inputs
        if not unguarded(graph, self.extraordinary).isdisjoint(inputs):
            return "it reads some in the model's usual inputs"
        return ""
