"""A null lab with made-up costs, so that passes run alone in milliseconds, without a worker, a database or a kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import onnx
from onnx import TensorProto, helper

from collage.backends.base import BackendKind
from collage.backends.engine import Engine
from collage.backends.layout import LayoutTransforms
from collage.backends.registry import Registry
from collage.backends.view import View
from collage.compiler.accuracy import Accuracy, Asked
from collage.compiler.assemble import Assembler
from collage.compiler.events import Event, Noted
from collage.compiler.executable import Executable
from collage.compiler.final_check import Finding
from collage.compiler.metrics import Metric
from collage.compiler.options import CompileOptions
from collage.compiler.passes.calibrate import Calibrate
from collage.compiler.passes.fixpoint import Fixpoint
from collage.compiler.passes.place import Place
from collage.compiler.plan import SEQUENTIAL
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.plan_runs import Race
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context, Source
from collage.compiler.whole_form import WholeForm
from collage.compiler.workbench import Workbench
from collage.core.progress import Progress
from collage.frontend.model import Model, import_model
from collage.frontend.original import AsLoaded
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import Target
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.database import Database, KernelKey
from collage.measure_db.keys import Raced
from collage.measure_db.results import (
    IN_NETWORK,
    Measurement,
    Outcome,
    Rejection,
    RejectionKind,
    Slower,
    Timing,
)
from collage.runtime.parts import Parts
from collage.schedule.program import make_program
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix
from collage.search.candidates import Offer
from tests.helpers.backends_for_tests import NumpyBackend, onnx_model

Costs = Mapping[tuple[str, tuple[int, ...]], float]
"""Microseconds by backend and nodes. Those of a baseline are under "engine as written" and its profile."""

WHOLE = (0, 1, 2, 3)
TARGET = Target("made up", "none", 2)
NOTHING_KNOWN = Rejection(RejectionKind.UNSUPPORTED, "no cost is made up for it")
WRONG = Finding(9.0, 9.0, "outputs differ")


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
    """An engine whose whole models are never run."""

    def __init__(self, name: str, profiles: Sequence[str] = ("",)) -> None:
        super().__init__(name, engine=True)
        self.known = profiles

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        return self.known

    def session(self, model: bytes, options: BuildOptions) -> Any:
        return object()


class ReducedEngine(NullEngine):
    """An engine that runs whole models in a reduced precision, too."""

    def __init__(self, name: str, precision: str = "bf16") -> None:
        super().__init__(name)
        self.precision = precision

    def precisions(self, options: BuildOptions) -> tuple[str, ...]:
        return tuple(options.precisions & {self.precision})


class NullMeasurer:
    """Knows made-up costs. ``asked`` are the requests that were measured, and ``rejected`` those that are rejected."""

    def __init__(self, model: Model, costs: Costs, backends: Mapping[str, Any]) -> None:
        self.model, self.costs, self.backends = model, costs, backends
        self.asked: list[CandidateRequest] = []
        self.rejected: dict[tuple[str, tuple[int, ...]], Rejection] = {}
        self.wrong: dict[int, str] = {}
        self.extraordinary: set[int] = set()
        self.switched: list[Sequence[CandidateRequest]] = []
        self.original: onnx.ModelProto | None = None
        self.as_loaded = None
        self.as_loaded_digest: str | None = None
        self.made_in_all = 1
        self.network_us = 0.0
        self.single: NullMeasurer = self
        self.changed: list[Any] = []
        self.outrun: dict[tuple[str, tuple[int, ...]], Slower] = {}
        """What kernels show in a race; measured to the end they take what ``costs`` say."""
        self.stopped: BaseException | None = None
        """What ends the measuring."""
        self.unknown: set[tuple[str, tuple[int, ...]]] = set()
        self.of_busy_times: dict[CandidateRequest, Outcome] = {}
        """What only ``recorded`` knows."""
        self.trusts = False
        """Whether ``trusting`` is entered."""
        self.error = 4e-3
        """The error of each kernel of reduced precision. Its cost is under "backend precision"."""

    def race(
        self,
        requests: Sequence[CandidateRequest],
        rivals_us: Mapping[tuple[int, ...], float] | None = None,
        switch_us: float = 0.0,
    ) -> dict[CandidateRequest, Outcome]:
        known = self.measure(requests)
        return {r: self.outrun.get((r.backend, r.nodes), outcome) for r, outcome in known.items()}

    def measure(
        self, requests: Sequence[CandidateRequest], progress: Callable[[Progress], None] | None = None
    ) -> dict[CandidateRequest, Outcome]:
        self.asked += requests
        if self.stopped is not None:
            raise self.stopped
        return self.known(requests)

    def known(self, requests: Iterable[CandidateRequest]) -> dict[CandidateRequest, Outcome]:
        return {
            request: self._outcome(request)
            for request in requests
            if (request.backend, request.nodes) not in self.unknown
        }

    def recorded(self, requests: Collection[CandidateRequest]) -> dict[CandidateRequest, Outcome]:
        return {each: self.of_busy_times[each] for each in requests if each in self.of_busy_times}

    @contextmanager
    def trusting(self) -> Iterator[None]:
        self.trusts = True
        try:
            yield
        finally:
            self.trusts = False

    def _outcome(self, request: CandidateRequest) -> Outcome:
        name = f"{request.backend} as written{request.profile}" if request.original else request.backend
        precision = request.variant.precision
        key = f"{name} {precision}" if precision else name, request.nodes
        if key in self.rejected:
            return self.rejected[key]
        us = self.costs.get(key)
        return NOTHING_KNOWN if us is None else Measurement(us, 0.0, us, 9, self.error if precision else 0.0)

    def measure_transforms(self, changes: Collection[Any]) -> dict[Any, float]:
        self.changed += changes
        return dict.fromkeys(changes, 1.0)

    @property
    def kernels(self) -> NullKernels:
        """What is known of kernels of plans."""
        return NullKernels(self)

    def known_transforms(self, changes: Collection[Any]) -> dict[Any, float]:
        return dict.fromkeys(changes, 1.0)

    def transform_backend(self, transform: Any) -> Any:
        return LayoutTransforms()

    def epsilon_us(self, requests: Sequence[CandidateRequest]) -> float:
        self.switched.append(requests)
        return 0.5

    def verify(self) -> dict[int, str]:
        return self.wrong

    def key(self, request: CandidateRequest) -> KernelKey:
        return KernelKey(str(request.nodes), request.backend, "1", "", 2, "made up", "1")

    def on_threads(self, threads: int) -> NullMeasurer:
        return self.single


class NullKernels:
    """The outcomes of kernels of plans, which are those of their requests."""

    def __init__(self, measurer: NullMeasurer) -> None:
        self.measurer = measurer

    def known(self, kernels: Iterable[Any]) -> dict[Any, Outcome]:
        return {
            each: self.measurer._outcome(each.what)
            for each in kernels
            if isinstance(each.what, CandidateRequest)
        }


class NullRuns:
    """Runs networks whose launches take made-up times; ``ran`` are the labels of what was run.

    ``network_us`` are times of launches in the network, where they are others than alone. ``whole_us`` are those of
    whole plans by label. ``dropped`` are plans that fail as a whole, ``worn_out`` is a kernel that fails in each of
    them until it is rejected, and ``findings`` are what the last check finds.
    """

    seed = 0

    def __init__(self, measurer: NullMeasurer) -> None:
        self.measurer = measurer
        self.ran: list[str] = []
        self.raced: list[tuple[list[str], Race]] = []
        self.network_us: dict[tuple[str, tuple[int, ...]], float] = {}
        self.whole_us: dict[str, float] = {}
        self.dropped: dict[str, str] = {}
        self.worn_out: tuple[str, tuple[int, ...]] | None = None
        self.findings: dict[str, Finding] = {}
        self.loaded: list[Executable] = []
        self.drops: Callable[[Executable], bool] = lambda _: False
        self.error_of: Callable[[Executable], float] = lambda _: 1e-7
        """The error on samples."""
        self.spread = 1.0
        """The error that is foreseen of other inputs, over that."""

    def launch_times_us(self, executable: Executable) -> tuple[float, ...]:
        self._run(executable)
        return self._times(executable)

    def race(self, executables: Sequence[Executable], race: Race) -> Mapping[str, Raced]:
        self.raced.append(([each.label for each in executables], race))
        found = {}
        for each in executables:
            self._run(each)
            us = self.whole_us.get(each.label, sum(self._times(each)))
            found[each.label] = Raced(Timing(us, 0.0, us, us, 50), self._times(each))
        return found

    def finding(self, executable: Executable, check: Callable[[], Any], about: str = "") -> Finding:
        self._run(executable)
        label = f"{executable.label}, guarded" if executable.guarded else executable.label
        return self.findings.get(label, Finding(0.25, 0.125, ""))

    def error(self, executable: Executable, accuracy: Accuracy) -> float:
        self._run(executable)
        return self.error_of(executable)

    def error_and_foreseen(self, executable: Executable, accuracy: Accuracy) -> tuple[float, float]:
        error = self.error(executable, accuracy)
        return error, self.spread * error

    def timing(self, executable: Executable, sample_s: float) -> Timing:
        self._run(executable)
        us = self.whole_us.get(executable.label, sum(self._times(executable)))
        return Timing(us, 0.0, us, us, 3)

    def load(self, executable: Executable, assembler: Assembler) -> tuple[Parts, Any]:
        self.loaded.append(executable)
        return Parts(executable.program, [], {}, TARGET, executable.versions), None

    def why_dropped(self, executables: Sequence[Executable]) -> Mapping[str, str]:
        return {error.label: str(error) for each in executables for error in self._errors(each)}

    def _errors(self, executable: Executable) -> list[PlanDroppedError]:
        if self.drops(executable):
            self.dropped[executable.label] = "crashed: SIGSEGV"
        found = self.dropped.get(executable.label)
        return [] if found is None else [PlanDroppedError(executable.label, found)]

    def _run(self, executable: Executable) -> None:
        for error in self._errors(executable):
            raise error
        self.ran.append(executable.label)
        for kernel in executable.kernels:
            what = kernel.what
            if isinstance(what, CandidateRequest) and (what.backend, what.nodes) == self.worn_out:
                rejection = Rejection(RejectionKind.CRASHED, f"{IN_NETWORK}: SIGSEGV")
                self.measurer.rejected[self.worn_out] = rejection
                self.worn_out = None
                raise KernelRejectedError(kernel, rejection)

    def _times(self, executable: Executable) -> tuple[float, ...]:
        return tuple(
            self.network_us.get((getattr(each, "backend", ""), getattr(each, "nodes", ())), each.cost_us)
            for each in executable.launches
        )


class NullLab:
    """Gives the same workbench for every model."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.journal: tuple[Event, ...] = ()

    def workbench(self, context: Context, compilation: Compilation) -> Workbench:
        return self.bench

    def close(self) -> tuple[Event, ...]:
        return self.journal


class Made:
    """A context with made-up costs, and the state that a pass begins with."""

    def __init__(
        self,
        costs: Costs,
        *backends: NullBackend,
        model: Callable[[], onnx.ModelProto] = chain,
        database: Database | None = None,
        **options: Any,
    ) -> None:
        registry = Registry()
        for backend in (View(), LayoutTransforms(), *(backends or [NullBackend("none")])):
            registry.register(backend)
        chosen = registry.select()
        self.model = imported(model)
        self.measurer = NullMeasurer(self.model, costs, chosen)
        self.runs = NullRuns(self.measurer)
        versions = dict.fromkeys(chosen, "1")
        assembler = Assembler(
            cast(Any, self.measurer), chosen, BuildOptions(TARGET.threads), TARGET, versions
        )
        original = model()
        self.lab = NullLab(
            Workbench(
                cast(Any, self.measurer),
                assembler,
                cast(Any, self.runs),
                original,
                asked=Asked(options.get("tolerance", 0.0), options.get("metric", Metric())),
            )
        )
        self.shown: list[Progress] = []
        self.context = Context(
            registry=registry,
            backends=chosen,
            versions=versions,
            target=TARGET,
            options=CompileOptions(**options),
            database=cast(Any, database),
            workers=cast(Any, None),
            progress=self.shown.append,
            lab=self.lab,
        )
        self.start = Compilation(Source(original, AsLoaded.of(original), "made up"), model=self.model)

    def measured(self) -> Compilation:
        """The start with an offer for each made-up cost, measured."""
        requests = [
            CandidateRequest(nodes, name, Variant(precision=precision))
            for (name, _, precision), nodes in ((n.partition(" "), ids) for n, ids in self.measurer.costs)
            if name in self.context.backends and precision in ("", "bf16", "int8")
        ]
        offers = tuple(Offer(request, "pattern") for request in requests)
        return replace(self.start, offers=offers, outcomes=self.measurer.known(requests), epsilon_us=0.5)


def each_node(name: str, us: float, count: int = 4) -> dict[tuple[str, tuple[int, ...]], float]:
    """The same cost for every node by itself."""
    return {(name, (node,)): us for node in range(count)}


def regions(compilation: Compilation) -> list[tuple[str, tuple[int, ...]]]:
    """Backend and nodes of each region of the best placement, in launch order."""
    return [(c.backend, c.nodes) for c in compilation.placed.placement.candidates]


def image() -> np.ndarray:
    """An input of the models in this file."""
    return np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def two_libraries() -> Made:
    """One of two libraries looks faster alone, and is slower in the network."""
    one, other = NullBackend("one", team=True), NullBackend("other", team=True)
    made = Made({**each_node("one", 10.0), **each_node("other", 12.0)}, one, other)
    made.runs.network_us = {("one", (node,)): 20.0 for node in range(4)}
    return made


def planned() -> tuple[Made, Compilation]:
    """The plans of a mix, and of an engine on the whole model."""
    library, engine = NullBackend("lib", team=True), NullBackend("engine", engine=True)
    made = Made({**each_node("lib", 10.0), ("engine", WHOLE): 50.0}, library, engine)
    return made, Fixpoint(Place(), Calibrate())(made.context, made.measured())


def notes(compilation: Compilation) -> list[str]:
    """The texts in the log that are for the user."""
    return [event.text for event in compilation.log if isinstance(event, Noted)]


def whole_on_engine(model: onnx.ModelProto) -> Compilation:
    """The model whole on an engine that is made up."""
    form = WholeForm(model, {}, "shapes depend on data", 0)
    region = Region("engine", ("onnx.Relu",), (0,), ("relu",), (), ())
    names = [tuple(port.name for port in side) for side in form.ports]
    program = make_program((), (), (), {}, 2).followed_by(Suffix(region, *form.ports, *names))
    selected = Selection(
        label="engine",
        parts=Parts(program, [], {}, TARGET, {}),
        executor=cast(Any, None),
        timings={"engine": Timing(9.0, 0.0, 9.0, 9.0, 20)},
        measured_us=9.0,
        predicted_us=9.0,
        max_abs_error=0.0,
        relative_error=0.0,
        schedule=SEQUENTIAL,
    )
    source = Source(model, AsLoaded.of(model), "made up")
    return Compilation(source, form=form, on_engine=model, selected=selected)
