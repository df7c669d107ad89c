"""A null lab with made-up costs: compiles run alone in milliseconds, without a worker or a kernel.

Bench, referee, ledger and database are the real ones. What would measure, run networks or run engines is made up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
from onnx import TensorProto, helper

from collage.backends.base import BackendKind
from collage.backends.engine import Engine
from collage.backends.layout import LayoutTransforms
from collage.backends.registry import Registry
from collage.backends.view import View
from collage.check.final_check import FinalCheck, Finding
from collage.compiler.assemble import Assembler
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.clock import Budget, Clock
from collage.compiler.compile import compiled
from collage.compiler.executable import Executable
from collage.compiler.import_model import Imported
from collage.compiler.known import Known
from collage.compiler.plan import Failed, Placed, Plan, RaceFailedError, Selection, Verdict, Whole
from collage.compiler.referee import Referee
from collage.compiler.stages import Stage, run_stages
from collage.compiler.task import CompileOptions, Source, Task
from collage.compiler.whole_bench import WholeBench
from collage.core.progress import Progress
from collage.errors import CollageError
from collage.frontend.model import Model, import_model
from collage.frontend.original import AsLoaded
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import Target
from collage.measure.measured_model import MeasuredModel
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.whole_protocol import EngineTrial, Opened
from collage.measure_db.database import Database, KernelKey
from collage.measure_db.results import IN_NETWORK, Measurement, Outcome, Rejection, RejectionKind, Slower
from collage.patterns.match import Match
from collage.runtime.parts import Parts
from collage.schedule.schedule import makespan_us
from collage.search.candidate import Candidate
from collage.search.candidates import Offer
from collage.search.transforms import PlacedTransform
from tests.helpers.backends_for_tests import NumpyBackend, onnx_model

Nodes = tuple[int, ...]
Costs = Mapping[tuple[str, Nodes], float]
"""Microseconds by backend and nodes. Those of a reduced precision are under "backend precision"."""

WHOLE = (0, 1, 2, 3)
TARGET = Target("made up", "none", 2)
WRONG = Finding(9.0, 9.0, "outputs differ")
CRASHED = Rejection(RejectionKind.CRASHED, f"{IN_NETWORK}: SIGSEGV")
NOTHING_KNOWN = Rejection(RejectionKind.UNSUPPORTED, "no cost is made up for it")


def chain() -> onnx.ModelProto:
    """x → relu (0) → tanh (1) → exp (2) → sigmoid (3) → y."""
    kind = ((4, 64), TensorProto.FLOAT)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Tanh", ["a"], ["b"], "tanh"),
        helper.make_node("Exp", ["b"], ["c"], "exp"),
        helper.make_node("Sigmoid", ["c"], ["y"], "sigmoid"),
    ]
    return onnx_model(nodes, {"x": kind}, {"y": kind})


def fork() -> onnx.ModelProto:
    """x → relu (0) and x → tanh (1), whose results add (2) adds."""
    kind = ((4, 64), TensorProto.FLOAT)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Tanh", ["x"], ["b"], "tanh"),
        helper.make_node("Add", ["a", "b"], ["y"], "add"),
    ]
    return onnx_model(nodes, {"x": kind}, {"y": kind})


@cache
def imported(make: Callable[[], onnx.ModelProto] = chain) -> Model:
    """The graph of a model that is imported once for all tests."""
    return import_model(make())


class NullBackend(NumpyBackend):
    """A backend that builds nothing."""

    def __init__(self, name: str, engine: bool = False, team: bool = False) -> None:
        self.name = name  # type: ignore[misc]
        self.kind = BackendKind.ENGINE if engine else BackendKind.LIBRARY  # type: ignore[misc]
        self.team = team

    def on_team(self) -> bool:
        return self.team


class NullEngine(NullBackend, Engine):
    """An engine that offers profiles, and whole models in reduced precisions."""

    def __init__(self, name: str, profiles: Sequence[str] = ("",), precision: str = "") -> None:
        super().__init__(name, engine=True)
        self.known, self.precision = profiles, precision

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        return self.known

    def precisions(self, options: BuildOptions) -> tuple[str, ...]:
        return tuple(options.precisions & {self.precision})

    def codegen_model(self, model: onnx.ModelProto, options: BuildOptions) -> bytes:
        return b""

    def session(self, model: bytes, options: BuildOptions) -> Any:
        return object()


class Steps:
    """The steps of a compile in order. The one with the number ``at`` raises ``error``, and so do ``also`` later."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.at: int | None = None
        self.error: BaseException = KeyboardInterrupt()
        self.also: Callable[[str], bool] = lambda _: False

    def __call__(self, step: str) -> None:
        number = len(self.taken)
        self.taken.append(step)
        if number == self.at or (self.at is not None and number > self.at and self.also(step)):
            raise self.error


class NullMeasurer:
    """Knows made-up costs. ``asked`` are the requests that were measured, and ``rejected`` those that are rejected."""

    def __init__(self, model: Model, costs: Costs, step: Steps) -> None:
        self.model, self.costs, self.step = model, costs, step
        self.measured = MeasuredModel(model)
        self.asked: list[CandidateRequest] = []
        self.rejected: dict[tuple[str, Nodes], Rejection] = {}
        self.outrun: dict[tuple[str, Nodes], Slower] = {}
        """What kernels show in a race, unless a rival is rejected. Measured to the end they take what ``costs`` say."""
        self.wrong: dict[int, str] = {}
        self.extraordinary: set[int] = set()
        self.as_loaded = None
        self.as_loaded_digest: str | None = "of the model as it was loaded"
        self.made_in_all = 0
        self.network_us = 0.0
        self.single: NullMeasurer = self
        self.finite_only: set[tuple[str, Nodes]] = set()
        self.session = SimpleNamespace(spent=dict)
        self.closed = 0

    def build_ahead(self, _: object) -> None:
        """Nothing takes long to build."""

    def close(self) -> None:
        self.closed += 1

    def expected_loss(self, _: CandidateRequest) -> float:
        return 0.0

    def race(self, requests: Sequence[CandidateRequest], *_: Any) -> dict[CandidateRequest, Outcome]:
        known = self.measure(requests)
        failed = {nodes for _, nodes in self.rejected}
        return {
            r: outcome if r.nodes in failed else self.outrun.get((r.backend, r.nodes), outcome)
            for r, outcome in known.items()
        }

    def measure(self, requests: Iterable[CandidateRequest], progress: Any = None) -> dict[CandidateRequest, Outcome]:
        for request in requests:
            if request not in self.asked:
                self.step(f"measure {request.backend} {request.nodes}")
                self.asked.append(request)
                self.made_in_all += 1
        return {request: self.outcome(request) for request in requests}

    def known(self, requests: Iterable[CandidateRequest]) -> dict[CandidateRequest, Outcome]:
        """What was measured, or is rejected."""
        there = [r for r in requests if r in self.asked or (r.backend, r.nodes) in self.rejected]
        return {request: self.outcome(request) for request in there}

    def outcome(self, request: CandidateRequest) -> Outcome:
        precision = request.variant.precision
        about = f"{request.backend} {precision}" if precision else request.backend, request.nodes
        if about in self.rejected:
            return self.rejected[about]
        us = self.costs.get(about)
        if us is None:
            return NOTHING_KNOWN
        found = Measurement(us, 0.0, us, 9, 4e-3 if precision else 0.0)
        return replace(found, finite_only=about in self.finite_only)

    def measure_transforms(self, changes: Collection[Any]) -> dict[Any, float]:
        return dict.fromkeys(changes, 1.0)

    def transform_backend(self, transform: Any) -> Any:
        return LayoutTransforms()

    def epsilon_us(self, requests: Sequence[CandidateRequest]) -> float:
        self.step("switch")
        return 0.5

    def verify(self) -> dict[int, str]:
        return self.wrong

    def key(self, request: CandidateRequest) -> KernelKey:
        about = f"{request.nodes} {request.variant}"
        return KernelKey(about, request.backend, "1", "", 2, "made up", "1")

    def on_threads(self, threads: int) -> NullMeasurer:
        return self.single

    @property
    def kernels(self) -> NullKernels:
        """What is known of kernels of plans."""
        return NullKernels(self)


class NullKernels:
    """The outcomes of kernels of plans, which are those of their requests."""

    def __init__(self, measurer: NullMeasurer) -> None:
        self.measurer = measurer

    def load(self, key: str) -> bytes:
        return b""

    def known(self, kernels: Iterable[Any]) -> dict[Any, Outcome]:
        asked = {each: each.what for each in kernels if isinstance(each.what, CandidateRequest)}
        found = self.measurer.known(asked.values())
        return {each: found[what] for each, what in asked.items() if what in found}


class NullRuns:
    """Runs networks whose launches take made-up times; ``ran`` are those that were opened, by the kernels' backends.

    ``network_us`` are times of launches in the network, if they are others than alone. ``drops`` says which networks
    fail as a whole, ``worn_out`` are kernels that fail at a step until they are rejected, and ``findings_of`` gives
    what the last check finds.
    """

    def __init__(self, measurer: NullMeasurer, step: Steps) -> None:
        self.measurer, self.step = measurer, step
        self.known = Known()
        self.made = 0
        self.ran: list[str] = []
        self.network_us: dict[tuple[str, Nodes], float] = {}
        self.worn_out: dict[tuple[str, Nodes], str] = {}
        """The step at which a kernel fails: open, turn, times, check, errors or load."""
        self.drops: Callable[[Executable], bool] = lambda _: False
        self.finding_of: Callable[[Executable], Finding] = lambda _: Finding(0.25, 0.125, "")
        self.error_of: Callable[[Executable], float] = lambda _: 1e-7
        """The error on samples."""
        self.spread = 1.0
        """The error that is foreseen of other inputs, over that."""
        self.checked: list[Executable] = []
        self.loaded: list[Executable] = []

    def open(self, executable: Executable) -> None:
        self._step("open", executable)
        self.ran.append(backends_of(executable))

    def turn(self, executable: Executable, settle_s: float, turn_s: float) -> list[float]:
        self._step("turn", executable)
        about = executable.program.ordered
        return [1e3 * makespan_us(about.dag, about.schedule, self._times(executable))]

    def launch_times_us(self, executable: Executable) -> tuple[float, ...]:
        self._step("times", executable)
        return self._times(executable)

    def finding(self, executable: Executable, check: Callable[[], Any], about: str = "") -> Finding:
        self._step("check", executable)
        self.checked.append(executable)
        return self.finding_of(executable)

    def error_and_foreseen(self, executable: Executable, accuracy: Any) -> tuple[float, float]:
        self._step("errors", executable)
        error = self.error_of(executable)
        return error, self.spread * error

    def load(self, executable: Executable, assembler: Assembler) -> tuple[Parts, Any]:
        self._step("load", executable)
        self.loaded.append(executable)
        return Parts(executable.program, [], {}, TARGET, executable.versions), None

    def _step(self, step: str, executable: Executable) -> None:
        self.step(f"{step} {backends_of(executable)}")
        if self.drops(executable):
            self._fail(executable, None)
        for kernel in executable.kernels:
            what = kernel.what
            if not isinstance(what, CandidateRequest):
                continue
            about = what.backend, what.nodes
            if about in self.measurer.rejected:
                self._fail(executable, None)
            if self.worn_out.get(about) == step:
                self.measurer.rejected[about] = CRASHED
                self.known.outcomes.update(self.measurer.known(self.known.outcomes))
                self._fail(executable, kernel)

    def _fail(self, executable: Executable, kernel: PlanKernel | None) -> None:
        reason = f"{CRASHED.kind.value}: {CRASHED.message}"
        self.known.fail(executable.plan.label, reason)
        raise RaceFailedError(Failed(executable.plan, reason, kernel))

    def _times(self, executable: Executable) -> tuple[float, ...]:
        return tuple(self._time(executable, each) for each in executable.launches)

    def _time(self, executable: Executable, launch: Candidate | PlacedTransform) -> float:
        if isinstance(launch, PlacedTransform):
            return launch.cost_us
        name = " ".join(filter(None, (launch.backend, launch.variant.precision)))
        alone_us = self.measurer.costs.get((name, launch.nodes), launch.cost_us)
        if executable.plan.streams is not None:  # on one thread
            alone_us = launch.cost_us
        return self.network_us.get((launch.backend, launch.nodes), alone_us)


class NullEngines:
    """Runs whole models in made-up times by the plan's label. Plans without one are refused.

    ``breaks`` are labels that fail in their turns, and ``wrong`` those whose outputs are wrong.
    """

    def __init__(self, us: Mapping[str, float], step: Steps) -> None:
        self.us, self.step = dict(us), step
        self.breaks: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        self.hostile: dict[str, tuple[str, bool]] = {}
        """What is wrong on hostile inputs, and whether a plan is right on finite ones only."""
        self.by_row_us: dict[str, float] = {}
        """The times of plans on single rows, by label."""
        self.suffix_us: dict[str, float] = {}
        self.suffix_makes: dict[str, float] = {}
        """The outputs of modules with a suffix, by the suffix's engine."""
        self.loaded: tuple[str, ...] = ()
        self.inputs: tuple[Any, ...] = ()
        self.trials: list[str] = []
        self.turns: list[str] = []
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def add_form(self, name: str, model: onnx.ModelProto) -> None: ...

    def trial(self, plans: Sequence[Whole]) -> EngineTrial:
        self.step("trial")
        self.trials += [plan.label for plan in plans]
        right = [each for each in self.trials if each in self.us and each not in self.wrong]
        refused = {e: self.wrong.get(e, "no Relu") for e in self.trials if e not in right}
        return EngineTrial(dict.fromkeys(right, (0.0, 0.0)), refused, () if right else self.loaded)

    def open(self, plan: Whole) -> Opened:
        self.step(f"open {plan.label}")
        if plan.label in self.us:
            return Opened((np.zeros((4, 64), np.float32),))
        return Opened(None, message="no Relu")

    def open_parts(self, name: str, parts: Parts, inputs: Sequence[int]) -> Opened:
        """Load a module with a suffix, which takes as long as its launches and ``suffix_us``."""
        assert parts.program.suffix is not None
        engine = parts.program.suffix.region.backend
        self.step(f"open {name} {engine}")
        launches_us = sum(region.cost_us for region in parts.program.launches)
        self.us[name] = launches_us + self.suffix_us[engine]
        made = np.full((4, 64), self.suffix_makes.get(engine, 0.0), np.float32)
        return Opened((made,))

    def outputs(self, plan: Whole, inputs: Sequence[Any]) -> Opened:
        return self.open(plan)

    def on_hostile(self, plan: Whole) -> tuple[str, bool]:
        self.step(f"hostile {plan.label}")
        return self.hostile.get(plan.label, ("", False))

    def expected(self) -> Opened:
        return Opened((np.zeros((4, 64), np.float32),))

    def turn(self, name: str, settle_s: float, turn_s: float, *, by_row: bool = False) -> list[float]:
        self.step(f"turn {name}")
        self.turns.append(f"{name}, by row" if by_row else name)
        if name in self.breaks:
            raise CollageError(self.breaks[name])
        return [1e3 * (self.by_row_us if by_row else self.us)[name]]


class NullBench(Bench):
    """A bench with made-up tools. Its offers are those with a made-up cost, unless ``matches``."""

    costs: Costs
    matches = False
    measurer_: NullMeasurer
    runs_: NullRuns

    def begin(self) -> None:
        """Nothing is imported."""

    def _tools_for(self, model: Model) -> tuple[Any, Any, Any]:
        self.measurer_.model = model
        self.runs_.known = self.known
        assembler = Assembler(cast(Any, self.measurer_), self.task)
        return self.measurer_, assembler, self.runs_

    def _match(self) -> None:
        if self.matches:
            super()._match()
            return
        found = []
        for name, nodes in self.costs:
            backend, _, precision = name.partition(" ")
            found.append(Offer(CandidateRequest(nodes, backend, Variant(precision=precision)), "pattern"))
        self.known.offers = found
        self.known.matches = [Match(nodes, name, "pattern") for name, nodes in self.costs]

    @cached_property
    def final_check(self) -> FinalCheck:
        return FinalCheck(self.task.source.original, (), ())


class Made:
    """A compile with made-up costs. ``engines`` are microseconds of whole models, by the plan's label."""

    def __init__(
        self,
        costs: Costs,
        *backends: NullBackend,
        model: Callable[[], onnx.ModelProto] = chain,
        database: Database | None = None,
        engines: Mapping[str, float] = {},
        samples: tuple[Mapping[str, Any], ...] = (),
        family: bool = False,
        budget_s: float | None = None,
        suffix: onnx.ModelProto | None = None,
        rows: int = 0,
        **options: Any,
    ) -> None:
        registry = Registry()
        for backend in (View(), LayoutTransforms(), *(backends or [NullBackend("none")])):
            registry.register(backend)
        chosen = registry.select()
        self.step = Steps()
        self.shown: list[Progress] = []
        original = model()
        source = Source(original, AsLoaded.of(original), "made up", samples=samples, family=family, rows=rows)
        versions = dict.fromkeys(chosen, "1")
        budget = Budget.of(budget_s)
        asked = CompileOptions(budget=budget, **options)
        self.task = Task(source, asked, registry, chosen, versions, TARGET)
        self.database = database or Database(":memory:")
        self.clock = Clock(budget)
        self.best = Best(self.shown.append, self.clock)
        self.bench = NullBench(self.task, self.database, cast(Any, SimpleNamespace()), self.clock, self.best.show)
        self.bench.costs = costs
        self.bench.__dict__["_imported"] = Imported(imported(model), original, source.as_loaded, {}, suffix=suffix)
        self.measurer = self.bench.measurer_ = NullMeasurer(imported(model), costs, self.step)
        self.runs = self.bench.runs_ = NullRuns(self.measurer, self.step)
        self.engines = NullEngines(engines, self.step)
        self.bench.whole._engines = cast(Any, self.engines)
        self.referee = Referee(self.bench)

    @property
    def whole(self) -> WholeBench:
        """What tries engines on the whole model."""
        return self.bench.whole

    def measured(self) -> Made:
        """The same with an outcome for each offer, and the cost of a switch."""
        self.bench.model  # noqa: B018  (finds the offers)
        self.bench.race([offer.request for offer in self.bench.known.offers])
        self.bench.measure_switch()
        return self

    def run(self, *proposers: Callable[[Bench, Best], Generator[Plan, Verdict, None]]) -> Made:
        """Run proposers as the rows of a table."""
        stages = [Stage(each.__name__, each) for each in proposers]
        run_stages(stages, self.bench, self.referee, self.best)
        return self

    def compiled(self) -> Selection:
        """Run a whole compile, and put the workers away."""
        try:
            return compiled(self.bench, self.best)
        finally:
            self.bench.close()

    @property
    def placed(self) -> list[Placed]:
        """All placements that ran, the best one first."""
        return [plan for plan in self.best.everything() if isinstance(plan, Placed)]

    @property
    def notes(self) -> list[str]:
        """The texts in the log that are for the user."""
        return [*self.bench.known.told]


def each_node(name: str, us: float, count: int = 4) -> dict[tuple[str, Nodes], float]:
    """The same cost for every node by itself."""
    return {(name, (node,)): us for node in range(count)}


def regions(plan: Plan) -> list[tuple[str, Nodes]]:
    """Backend and nodes of each region of a placement, in launch order."""
    assert isinstance(plan, Placed)
    return [(c.backend, c.nodes) for c in plan.placement.candidates]


def backends_of(executable: Executable) -> str:
    """The backends of the launches, in order."""
    return " ".join(region.backend for region in executable.program.launches)


def image() -> np.ndarray:
    """An input of the models in this file."""
    return np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
