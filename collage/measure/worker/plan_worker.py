"""The worker's side of plans: networks of kernels that were measured are loaded, checked, timed and run on inputs.

A kernel that is right and fast by itself may crash, hang or err among others. Here that costs the worker only, and the
files that it leaves (``plan_trace``) tell which kernel it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collage.check.samples import Samples
from collage.check.stages import RejectedError, stage
from collage.core.quiet import quiet_machine
from collage.frontend.model import Model
from collage.frontend.model_artifacts import artifact_in
from collage.graph.dataflow import Array
from collage.kernel.artifacts import Artifacts
from collage.kernel.frames import Artifact
from collage.kernel.kernel import Kernel
from collage.measure.timing.interleave import take_turn
from collage.measure.timing.launch_times import NotedRuns, run_in_turns
from collage.measure.worker.plan_check import PlanCheck
from collage.measure.worker.plan_protocol import Plan, PlanFailed, Stage
from collage.measure.worker.plan_trace import WorkerPosition, blame, clock_of
from collage.measure.worker.protocol import AS_LOADED, AskPlan
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

    def __init__(self, folder: Path, model: Model, backends: Backends, artifacts: Artifacts, samples: Samples) -> None:
        self._folder = folder
        self._model = model
        self._backends = backends
        self._artifacts = artifacts
        self._samples = samples
        self._place = WorkerPosition(folder)
        self._plans: dict[str, _Open] = {}
        self._artifact_of: dict[str, Artifact] = {}
        self._loaded: Loaded = {}

    def answer(self, message: AskPlan) -> object:
        """What the method gives, or PlanFailed. Its first argument is the plan, or its name if it is open."""
        which = message.args[0]
        plan = which if isinstance(which, Plan) else self._plans[which].plan
        try:
            with stage("run"):
                return getattr(self, message.method)(*message.args)
        except RejectedError as rejected:
            launch = blame(self._folder, plan)
            self._plans.pop(plan.name, None)
            return PlanFailed(rejected.rejection, launch)
        finally:
            self._place.enter(Stage.IDLE)

    def open_alone(self, plan: Plan) -> float:
        """Open the plan as in the process that it is handed over to, and run it without notes.

        Its kernels are loaded for it alone. Gives the seconds of its longest run.
        """
        known = self._plans.get(plan.name)
        if known is None or not known.alone:
            self._plans.clear()
            self._artifact_of.clear()
            self._loaded.clear()
            self._load(plan, alone=True)
        opened = self._plans[plan.name]
        for _ in range(_PLAIN_RUNS):
            self._timed(opened)
        return opened.noted.longest_s

    def open(self, plan: Plan, keep: tuple[str, ...]) -> float:
        """Load the plan's kernels, whose artifacts are kept, check and run it. Gives the seconds of its longest run.

        Of the plans that are open already, those with the names to ``keep`` stay open; it shares kernels with them.
        """
        for name in self._plans.keys() - set(keep):
            del self._plans[name]
        return self._load(plan, alone=False)

    def _load(self, plan: Plan, *, alone: bool) -> float:
        graph, place = self._model.graph, self._place
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
        runs = _CHECKED_ALONE if alone else 1
        PlanCheck(plan, executor, self._model, self._samples).run(kernels, place, runs)
        place.enter(Stage.NOTED)
        for _ in range(_NOTED_RUNS):
            noted()
        self._plans[plan.name] = _Open(plan, executor, noted, inputs, alone)
        return noted.longest_s

    def _artifacts_for(self, plan: Plan) -> list[Artifact]:
        """The artifacts of the plan's kernels. Open plans share them, and the kernels that were loaded from them."""
        used = {kernel.key for each in (plan, *(o.plan for o in self._plans.values())) for kernel in each.kernels}
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

    def note(self, name: str, seconds: float) -> tuple[float, ...]:
        """Run an open plan for so many seconds: the microseconds of each launch."""
        noted = self._plans[name].noted
        noted.forget()
        self._place.enter(Stage.NOTED)
        with quiet_machine():
            run_in_turns(noted, seconds)
        return tuple(noted.launches_us())

    def run(self, name: str, inputs: Sequence[Array]) -> tuple[list[Any], bool]:
        """The outputs of an open plan, and whether guards have found what the kernels are not right on."""
        self._place.mark()
        executor = self._plans[name].executor
        before = executor.careful_runs
        outputs = executor.run(inputs)
        return outputs, executor.careful_runs > before

    def turn(self, name: str, settle_s: float, turn_s: float) -> list[float]:
        """Nanoseconds of the calls of a turn with an open plan (see ``interleave.take_turn``)."""
        with quiet_machine():
            return take_turn(partial(self._timed, self._plans[name]), settle_s, turn_s)

    def _timed(self, opened: _Open) -> None:
        self._place.mark()
        opened.executor.run(opened.inputs)
