"""The state of a compile: what does not change, and what each pass gives the next one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import onnx

from collage.backends.base import VIEW, Backend, BackendKind
from collage.backends.registry import Registry
from collage.compiler.events import Event
from collage.compiler.options import CompileOptions
from collage.compiler.plan import Plan
from collage.compiler.proposal import NOT_CALIBRATED, Calibration, Proposal
from collage.compiler.selection import Selection
from collage.compiler.whole_form import WholeForm
from collage.compiler.workbench import Workbench
from collage.core.progress import Progress
from collage.frontend.model import Model
from collage.frontend.original import AsLoaded
from collage.kernel.options import BuildOptions
from collage.kernel.target import Target
from collage.measure_db.database import Database
from collage.measure_db.process import Workers
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Outcome
from collage.patterns.match import Match, RejectedMatch
from collage.search.candidates import Offer


@dataclass(frozen=True)
class Source:
    """What is compiled: the model with its shapes fixed, as it was loaded, and the user's inputs by name."""

    original: onnx.ModelProto
    as_loaded: AsLoaded
    name: str
    samples: Mapping[str, Any] = field(default_factory=dict)


class Lab(Protocol):
    """Gives workbenches."""

    def workbench(self, context: Context, compilation: Compilation) -> Workbench:
        """That of the compilation's model, made on first use. The one of another model is put away for it."""

    def close(self) -> tuple[Event, ...]:
        """Put all workbenches away, and tell what has happened on them since the last time."""


@dataclass(frozen=True)
class Context:
    """What is the same for all passes of a compile. ``versions`` are the backends' library versions."""

    registry: Registry
    backends: Mapping[str, Backend]
    versions: Mapping[str, str]
    target: Target
    options: CompileOptions
    database: Database
    workers: Workers
    progress: Callable[[Progress], None]
    lab: Lab

    @property
    def build(self) -> BuildOptions:
        """What kernels are built for."""
        return BuildOptions(self.target.threads, self.options.tune_trials, exact=self.options.exact)

    @cached_property
    def engines(self) -> Mapping[str, Backend]:
        """The graph engines among the backends, by name."""
        return {name: each for name, each in self.backends.items() if each.kind is BackendKind.ENGINE}

    @cached_property
    def on_team(self) -> Collection[str]:
        """Names of the backends whose kernels run on Collage's own team of threads."""
        return {name for name, each in self.backends.items() if each.on_team()}

    def workbench(self, compilation: Compilation) -> Workbench:
        """What measures and runs the compilation's model."""
        return self.lab.workbench(self, compilation)


@dataclass(frozen=True)
class Compilation:
    """How far a compile is. Each pass returns a new one.

    ``model`` comes from the import; ``matches`` are what backends may run of it, ``refused`` what they may not, and
    ``offers`` what can be measured of the matches. ``outcomes`` are what was measured, ``epsilon_us`` the cost of a
    switch between libraries (Eq. 2.2). ``left_out`` are backends that no placement may have. ``plans`` are what runs
    in the last comparison. ``form`` is what engines were tried on as a whole, and ``on_engine`` the part of the model
    that an engine runs after what is placed, or all of it where nothing is. ``log`` has what happened, in order.
    """

    source: Source
    model: Model | None = None
    matches: tuple[Match, ...] = ()
    refused: tuple[RejectedMatch, ...] = ()
    offers: tuple[Offer, ...] = ()
    outcomes: Mapping[Request, Outcome] = field(default_factory=dict)
    epsilon_us: float = 0.0
    left_out: frozenset[str] = frozenset()
    proposal: Proposal | None = None
    calibration: Calibration = NOT_CALIBRATED
    plans: tuple[Plan, ...] = ()
    form: WholeForm | None = None
    on_engine: onnx.ModelProto | None = None
    selected: Selection | None = None
    log: tuple[Event, ...] = ()

    @property
    def imported(self) -> Model:
        """The model, which the import has made."""
        if self.model is None:
            raise RuntimeError("the pass needs a model: the import comes first")
        return self.model

    @property
    def placed(self) -> Proposal:
        """The proposal, which placing has made."""
        if self.proposal is None:
            raise RuntimeError("the pass needs a placement: placing comes first")
        return self.proposal

    @property
    def result(self) -> Selection:
        """The selection, which the last pass has made."""
        if self.selected is None:
            raise RuntimeError("nothing is selected: the pipeline has not come to its end")
        return self.selected

    @property
    def views(self) -> list[Match]:
        """The matches that cost nothing and launch nothing."""
        return [match for match in self.matches if match.backend == VIEW]

    @cached_property
    def tunings(self) -> Mapping[Request, str]:
        """The records of Backend.tune."""
        return {
            request: outcome.tuning
            for request, outcome in self.outcomes.items()
            if isinstance(outcome, Measurement) and outcome.tuning
        }

    def told(self, *events: Event) -> Compilation:
        """The same, with more in its log."""
        return replace(self, log=(*self.log, *events))


class Pass(Protocol):
    """One step of a compile. It keeps nothing: all that it finds is in the compilation that it returns."""

    def __call__(self, context: Context, compilation: Compilation, /) -> Compilation: ...


def run(passes: tuple[Pass, ...], context: Context, compilation: Compilation) -> Compilation:
    """The passes, one after another."""
    for each in passes:
        compilation = each(context, compilation)
    return compilation
