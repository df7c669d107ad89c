"""The worker's side of plans: networks of kernels that were measured are loaded, checked, timed and run on inputs.

A kernel that is right and fast by itself may crash, hang or err among others. Here that costs the worker only, and the
files that it leaves (``plan_trace``) tell which kernel it was.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collage.check.samples import Samples
from collage.check.stages import RejectedError, stage
from collage.frontend.model import Model
from collage.frontend.model_artifacts import artifact_in
from collage.graph.dataflow import Array
from collage.kernel.frames import Artifact
from collage.kernel.kernel import Call, Kernel
from collage.measure.artifacts import Artifacts
from collage.measure.machine.quiet import quiet_machine
from collage.measure.timing.interleave import take_turn
from collage.measure.timing.launch_times import NotedRuns, run_in_turns
from collage.measure.worker.plan_check import PlanCheck
from collage.measure.worker.plan_protocol import (
    NotePlan,
    OpenPlan,
    Plan,
    PlanFailed,
    PlanOpened,
    PlanRan,
    PlanTimes,
    RunPlan,
    Stage,
    TurnPlan,
)
from collage.measure.worker.plan_trace import WorkerPosition, blame, clock_of
from collage.measure.worker.protocol import AS_LOADED
from collage.runtime.executor import Executor
from collage.runtime.original import Careful
from collage.runtime.parts import Backends, Loaded, load_kernels

_NOTED_RUNS = 4
_CHECKED_ALONE = 3
"""Each launch of a plan that may be handed over is checked so many times: a kernel may fail in its third call."""
_PLAIN_RUNS = 3
"""A plan that may be handed over runs so many times without notes. A kernel may fail in its second call."""


@dataclass(frozen=True)
class _Open:
    """A plan that is loaded; ``alone`` says that it was checked as one that may be handed over."""

    plan: Plan
    executor: Executor
    noted: NotedRuns
    inputs: Sequence[Array]
    alone: bool


class PlanWorker:
    """The plans of one model; ``backends`` has all that their kernels need."""

    def __init__(
        self, folder: Path, model: Model, backends: Backends, artifacts: Artifacts, samples: Samples
    ) -> None:
        self._folder = folder
        self._model = model
        self._backends = backends
        self._artifacts = artifacts
        self._samples = samples
        self._place = WorkerPosition(folder)
        self._plans: dict[str, _Open] = {}
        self._artifact_of: dict[str, Artifact] = {}
        self._loaded: Loaded = {}

    def answer(self, message: Any) -> object | None:
        """The reply to a message about plans, or None for any other message."""
        if isinstance(message, OpenPlan):
            open_it = self._open_alone if message.alone else self._open
            return self._guarded([message.plan], lambda: open_it(message))
        if isinstance(message, NotePlan):
            return self._about([message.name], lambda: self._note(message))
        if isinstance(message, RunPlan):
            return self._about([message.name], lambda: self._run(message))
        if isinstance(message, TurnPlan):
            call = self._timed(0, self._plans[message.name])
            work = partial(take_turn, call, message.settle_s, message.turn_s)
            with quiet_machine():
                return self._about([message.name], work)
        return None

    def _about(self, names: Sequence[str], work: Callable[[], object]) -> object:
        return self._guarded([self._plans[name].plan for name in names], work)

    def _guarded(self, plans: Sequence[Plan], work: Callable[[], object]) -> object:
        try:
            with stage("run"):
                return work()
        except RejectedError as rejected:
            number, launch = blame(self._folder, plans)
            self._plans.pop(plans[number].name, None)
            return PlanFailed(rejected.rejection, launch, number)
        finally:
            self._place.enter(Stage.IDLE)

    def _open_alone(self, message: OpenPlan) -> PlanOpened:
        """Open the plan with kernels that are loaded for it, unless that was done, and run it without notes."""
        known = self._plans.get(message.name)
        if known is None or not known.alone:
            self._plans.clear()
            self._artifact_of.clear()
            self._loaded.clear()
            self._open(message)
        opened = self._plans[message.name]
        call = self._timed(0, opened)
        for _ in range(_PLAIN_RUNS):
            call()
        return PlanOpened(opened.noted.longest_s)

    def _open(self, message: OpenPlan) -> PlanOpened:
        plan, graph, place = message.plan, self._model.graph, self._place
        for name in self._plans.keys() - set(message.keep):
            del self._plans[name]
        place.enter(Stage.LOAD, launch=0)
        artifacts = self._artifacts_for(plan)
        loading = load_kernels(plan.program, artifacts, self._backends, self._loaded)
        kernels: list[Kernel] = []
        with stage("load"):
            for launch in range(len(plan.kernels)):
                place.enter(Stage.LOAD, launch=launch)
                kernels.append(next(loading))
        place.enter(Stage.BIND)
        with stage("bind"):
            constants = {v: graph.constants[v] for v in graph.outputs if graph.is_constant(v)}
            executor = Executor(plan.program, kernels, constants, careful=self._careful(plan))
            inputs = [np.array(self._samples.store.load(v, graph.type_of(v))) for v in graph.inputs]
            noted = NotedRuns(executor, inputs, clock_of(self._folder, plan.name, len(kernels)))
        runs = _CHECKED_ALONE if message.alone else 1
        PlanCheck(plan, executor, self._model, self._samples).run(kernels, place, runs)
        opened = _Open(plan, executor, noted, inputs, message.alone)
        call = self._noted(0, opened)
        for _ in range(_NOTED_RUNS):
            call()
        self._plans[plan.name] = opened
        return PlanOpened(noted.longest_s)

    def _artifacts_for(self, plan: Plan) -> list[Artifact]:
        """The artifacts of the plan's kernels. Open plans share them, and the kernels that were loaded from them."""
        used = {
            kernel.key for each in (plan, *(o.plan for o in self._plans.values())) for kernel in each.kernels
        }
        self._artifact_of = {key: found for key, found in self._artifact_of.items() if key in used}
        kept = {id(artifact) for artifact in self._artifact_of.values()}
        self._loaded = {key: kernel for key, kernel in self._loaded.items() if key[0] in kept}
        for kernel in plan.kernels:
            if kernel.key not in self._artifact_of:
                self._artifact_of[kernel.key] = self._artifacts.open(kernel.key)
        return [self._artifact_of[kernel.key] for kernel in plan.kernels]

    def _careful(self, plan: Plan) -> Careful | None:
        path = self._folder / AS_LOADED
        if not plan.program.is_guarded or not path.exists():
            return None
        return Careful(artifact_in(path), plan.program.threads)

    def _note(self, message: NotePlan) -> PlanTimes:
        opened = self._plans[message.name]
        opened.noted.forget()
        with quiet_machine():
            run_in_turns(self._noted(0, opened), message.seconds)
        return PlanTimes(tuple(opened.noted.launches_us()))

    def _run(self, message: RunPlan) -> PlanRan:
        inputs = pickle.loads(Path(message.inputs_path).read_bytes())
        self._place.mark(0)
        executor = self._plans[message.name].executor
        before = executor.careful_runs
        outputs = executor.run(inputs)
        Path(message.outputs_path).write_bytes(pickle.dumps(outputs, protocol=pickle.HIGHEST_PROTOCOL))
        return PlanRan(executor.careful_runs > before)

    def _timed(self, number: int, opened: _Open) -> Call:
        mark, run, inputs = self._place.mark, opened.executor.run, opened.inputs

        def call() -> None:
            mark(number)
            run(inputs)

        return call

    def _noted(self, number: int, opened: _Open) -> Call:
        def call() -> None:
            self._place.enter(Stage.NOTED, number)
            opened.noted()

        return call
