"""The state of a compile: the context, which does not change, and the compilation, which passes hand on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import onnx

from collage.backends.base import VIEW, Backend, BackendKind
from collage.backends.registry import Registry
from collage.backends.source_digest import keyed_versions
from collage.compiler.course import Course
from collage.compiler.events import Event
from collage.compiler.options import CompileOptions
from collage.compiler.plan import Plan
from collage.compiler.proposal import NOT_CALIBRATED, Calibration, Proposal
from collage.compiler.selection import Selection
from collage.compiler.whole_form import WholeForm
from collage.compiler.whole_model import WholeModel
from collage.compiler.workbench import Workbench
from collage.core.progress import Progress
from collage.frontend.model import Model
from collage.frontend.original import AsLoaded
from collage.graph.ranges import Range
from collage.graph.storage import CUDA
from collage.kernel.machine_speeds import WRITTEN_DOWN, MachineSpeeds
from collage.kernel.options import BuildOptions
from collage.kernel.target import Target
from collage.measure.crew import Crews
from collage.measure.worker.process import Workers
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.database import Database
from collage.measure_db.results import Measurement, Outcome
from collage.patterns.match import Match, RejectedMatch
from collage.search.candidates import Offer
from collage.search.errors import ErrorBudget


@dataclass(frozen=True)
class Source:
    """What is compiled: the model with its shapes fixed, the model as it was loaded, and a name.

    ``example_inputs`` are the user's inputs by name, and ``samples`` several such sets, whose first one they are then.
    A ``family`` has other models of this structure, which get the same placement with weights of their own. So nothing
    in it may depend on what numbers this model has inside. Where the model is a part of something larger, ``share_us``
    are microseconds that its equal share of the whole takes at least: kernels are timed as precisely as that needs.
    """

    original: onnx.ModelProto
    as_loaded: AsLoaded
    name: str
    example_inputs: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = ()
    family: bool = False
    share_us: float = 0.0


class Lab(Protocol):
    """A lab, which makes workbenches."""

    def workbench(self, context: Context, compilation: Compilation) -> Workbench:
        """The workbench of the compilation's model, made on first use. One of another model is put away first."""

    def close(self) -> tuple[Event, ...]:
        """Put all workbenches away. Returns their events since the last call."""


@dataclass(frozen=True)
class Context:
    """What is the same for all passes of a compile.

    ``backends`` are the chosen ones of the registry by name, and ``versions`` their library versions. ``course`` has
    the deadline, and remembers what would be lost when a pass is stopped. ``speeds_of`` tells the machine's speeds,
    which may take seconds. ``crews`` do the measuring; without them it is done here.
    """

    registry: Registry
    backends: Mapping[str, Backend]
    versions: Mapping[str, str]
    target: Target
    options: CompileOptions
    database: Database
    workers: Workers
    progress: Callable[[Progress], None]
    lab: Lab
    course: Course[Compilation] = field(default_factory=lambda: Course())
    speeds_of: Callable[[], MachineSpeeds] = lambda: WRITTEN_DOWN
    crews: Crews | None = None

    @cached_property
    def speeds(self) -> MachineSpeeds:
        """The machine's speeds. Nobody needs them for the first module, so they are asked for after it."""
        return self.speeds_of()

    @cached_property
    def halves(self) -> bool:
        """Whether models in float16 are computed in it, as GPUs do: whether a backend for one is among the chosen."""
        return any(each.device == CUDA for each in self.backends.values())

    @cached_property
    def keyed_versions(self) -> Mapping[str, str]:
        """``versions`` as keys of measurements have them: those of backends from outside tell their source, too."""
        return keyed_versions(self.backends, self.versions)

    @property
    def build(self) -> BuildOptions:
        """The build options of kernels."""
        return BuildOptions(
            self.target.threads,
            self.options.tune_trials,
            exact=self.options.exact,
            reassociate=self.options.reassociate,
            precisions=self.options.precisions,
            speeds=self.speeds,
        )

    @cached_property
    def engines(self) -> Mapping[str, Backend]:
        """The graph engines among the backends, by name."""
        return {name: each for name, each in self.backends.items() if each.kind is BackendKind.ENGINE}

    @cached_property
    def on_team(self) -> Collection[str]:
        """Names of the backends whose kernels run on Collage's own team of threads."""
        return {name for name, each in self.backends.items() if each.on_team()}

    @cached_property
    def without_switch(self) -> Collection[str]:
        """Names of the backends whose launches cost no context switch."""
        return {name for name, each in self.backends.items() if not each.pays_switch()}

    def workbench(self, compilation: Compilation) -> Workbench:
        """The workbench that measures and runs the compilation's model."""
        return self.lab.workbench(self, compilation)


@dataclass(frozen=True)
class Compilation:
    """What is known so far in a compile. Each pass returns a new one.

    - ``first``: the fastest engine on the whole model, which can be handed over whenever the compile is stopped.
    - ``model``: the dataflow graph, which Import makes.
    - ``ranges``: what numbers values have on samples, for kernels that store them in 8 bits.
    - ``matches``, ``refused``, ``offers``: subgraphs that backends can run; those that they refuse; what is measured.
    - ``outcomes``, ``epsilon_us``: the outcome of each measurement, and the cost of a switch between libraries in
      microseconds (Eq. 2.2).
    - ``left_out``: names of backends that no placement may use.
    - ``early``: plans of reduced precision within the tolerance, for a compile that is stopped before it is done.
    - ``budget``: the error that the search may spend; without it kernels compute in the model's own dtypes.
    - ``errors``: the budget that samples have led to so far, from which the next search with one begins.
    - ``proposal``, ``calibration``, ``plans``: what the search proposes; times in the network; what is compared last.
    - ``form``, ``on_engine``: the form of the model that engines were tried on as a whole; the nodes that an engine
      runs after the placed ones, or all nodes where none is placed.
    - ``selected``, ``log``: the result; the events in order.
    """

    source: Source
    first: WholeModel | None = None
    model: Model | None = None
    ranges: Mapping[int, Range] = field(default_factory=dict)
    matches: tuple[Match, ...] = ()
    refused: tuple[RejectedMatch, ...] = ()
    offers: tuple[Offer, ...] = ()
    outcomes: Mapping[CandidateRequest, Outcome] = field(default_factory=dict)
    epsilon_us: float = 0.0
    left_out: frozenset[str] = frozenset()
    early: tuple[Plan, ...] = ()
    budget: ErrorBudget | None = None
    errors: ErrorBudget | None = None
    proposal: Proposal | None = None
    calibration: Calibration = NOT_CALIBRATED
    plans: tuple[Plan, ...] = ()
    form: WholeForm | None = None
    on_engine: onnx.ModelProto | None = None
    selected: Selection | None = None
    log: tuple[Event, ...] = ()

    @property
    def imported(self) -> Model:
        """The imported model. Raises RuntimeError before the import."""
        if self.model is None:
            raise RuntimeError("the pass needs a model: the import comes first")
        return self.model

    @property
    def placed(self) -> Proposal:
        """The proposal of the search. Raises RuntimeError before the first placing."""
        if self.proposal is None:
            raise RuntimeError("the pass needs a placement: placing comes first")
        return self.proposal

    @property
    def result(self) -> Selection:
        """The selection of the compile. Raises RuntimeError before the last pass."""
        if self.selected is None:
            raise RuntimeError("nothing is selected: the pipeline has not come to its end")
        return self.selected

    @property
    def views(self) -> list[Match]:
        """The matches of views, which cost nothing and launch nothing."""
        return [match for match in self.matches if match.backend == VIEW]

    @cached_property
    def tunings(self) -> Mapping[CandidateRequest, str]:
        """The records of ``Tuner.tune`` by request."""
        return {
            request: outcome.tuning
            for request, outcome in self.outcomes.items()
            if isinstance(outcome, Measurement) and outcome.tuning
        }

    def told(self, *events: Event) -> Compilation:
        """The same compilation with more events in its log."""
        return replace(self, log=(*self.log, *events))


class Pass(Protocol):
    """One step of a compile. A pass keeps no state: all its results are in the compilation that it returns."""

    def __call__(self, context: Context, compilation: Compilation, /) -> Compilation: ...


def run(passes: tuple[Pass, ...], context: Context, compilation: Compilation) -> Compilation:
    """Run the passes one after another, each on the result of the one before.

    The course learns of each result. Raises BudgetOverError where the time is over before a pass.
    """
    for each in passes:
        context.course.deadline.check()
        compilation = each(context, compilation)
        proposal = compilation.proposal
        context.course.reached(compilation, None if proposal is None else proposal.placement.predicted_us)
    return compilation
