"""Models whose shapes depend on data from some operator on: what is before it is placed, an engine runs the rest.

A detector is a network of static shapes with a suppression of overlapping boxes at its end, which finds one number of
boxes in one picture and another in the next. The two parts in turn are a rival of the engines on the whole model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import onnx

from collage.compiler.whole import WholeModel, candidates_of, tail_region
from collage.core.progress import Progress
from collage.errors import CollageError, ModelError, NoPlacementError
from collage.frontend.importer import DataDependentError
from collage.frontend.scopes import all_nodes
from collage.frontend.shapes import model_inputs
from collage.frontend.simplify import simplify
from collage.frontend.split import Split, split
from collage.measure_db.compare import difference, dtypes_of, region_tolerance
from collage.measure_db.interleave import ties
from collage.measure_db.timing import Timing
from collage.measure_db.whole import Trial, WholeMeasurer
from collage.module.module import CompiledModule
from collage.report.report import NodeReport, Report, figures
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts, load_tail
from collage.schedule.tail import Tail

log = logging.getLogger(__name__)

_FACT = "static_part"

CompileHead = Callable[[onnx.ModelProto, Mapping[str, Any]], CompiledModule]
"""Compiles a model of static shapes for the user's inputs by name."""


def with_static_part(
    model: WholeModel, whole: CompiledModule, problem: DataDependentError, compile_head: CompileHead
) -> CompiledModule:
    """The model with its static part placed, where that is faster than ``whole``, else ``whole``.

    ``problem`` is what kept the model from being placed. Raises DatabaseError and MeasurementError.
    """
    started = time.perf_counter()
    parts = split(simplify(model.original), problem.nodes) if whole.report.finalists else None
    if parts is None:  # or there is nothing to compare with
        return whole
    wanted = {info.name for info in parts.head.graph.input}
    try:
        head = compile_head(parts.head, {n: v for n, v in model.samples.items() if n in wanted})
    except (ModelError, NoPlacementError) as error:
        return _told(whole, f"its static part has no placement: {error}")
    return _Contest(model, whole, parts, head, started, problem).winner()


@dataclass(frozen=True)
class _Contest:
    """The model whole on one engine against its static part, placed, with an engine for the tail."""

    model: WholeModel
    whole: CompiledModule
    parts: Split
    head: CompiledModule
    started: float
    problem: DataDependentError

    def winner(self) -> CompiledModule:
        with self._measurer() as measurer:
            numbers = {name: number for number, name in enumerate(self.model.inputs)}
            ran = measurer.run("head", self.head.parts, [numbers[name] for name in self.head.inputs])
        if ran.outputs is None:
            return _told(self.whole, f"its static part fails: {ran.message}")
        values = {**self.model.inputs, **dict(zip(self.head.outputs, ran.outputs, strict=True))}
        read = [values[name] for name in self._reads]
        data: bytes = self.parts.tail.SerializeToString(deterministic=True)
        key = f"{self.model.key}; tail {hashlib.sha256(data).hexdigest()}"
        trial, made = self.model.engines.trial(self.parts.tail, lambda: read, key, "what depends on data")
        staged = {_label(engine): self._staged(engine, data, trial) for engine in trial.timings}
        (engine,) = {region.backend for region in self.whole.program.regions}
        rivals = {engine: _Rival(self.whole.parts, self.whole.report), **staged}
        try:
            with self._measurer() as measurer:
                right = self._errors(measurer, rivals, engine)
                if not right:
                    return _told(
                        self.whole,
                        "its static part is not placed: no engine runs the rest of it, or to other numbers",
                    )
                timings, compared = self._timings(measurer, [engine, *right], key)
        except CollageError as error:
            return _told(self.whole, f"its static part is not placed: compared with the whole, {error}")
        alike = ties(timings)
        best = engine if engine in alike else alike[0]  # whole is simpler
        made += self.whole.report.measurements_made + self.head.report.measurements_made + compared
        report = replace(
            rivals[best].report,
            measured_us=timings[best].median_us,
            measurements_made=made,
            compile_s=self.whole.report.compile_s + time.perf_counter() - self.started,
            finalists={**self.whole.report.finalists, **figures(timings)},
        )
        if best == engine:
            return CompiledModule(self.whole.parts, report, self.whole.executor)
        report = replace(report, max_abs_error=right[best][0], relative_error=right[best][1])
        parts, executor = rivals[best].parts, self.head.executor.clone()
        assert isinstance(executor, Executor)
        return CompiledModule(parts, report, load_tail(parts, executor, self.model.engines.backends))

    def _measurer(self) -> WholeMeasurer:
        """Runs modules in a worker: what is right by itself may yet fail beside an engine."""
        engines, inputs = self.model.engines, [*self.model.inputs.values()]
        return WholeMeasurer(
            *(self.model.original, inputs, engines.backends, engines.threads, engines.workers),
            *(engines.effort, engines.time_limit_s),
        )

    @property
    def _reads(self) -> tuple[str, ...]:
        return tuple(info.name for info in model_inputs(self.parts.tail))

    def _staged(self, engine: str, data: bytes, trial: Trial) -> _Rival:
        """The head's module with the tail on an engine after it; its report lacks what the comparison tells."""
        head, nodes = self.head, self.parts.tail.graph.node
        threads, timing = self.model.target.threads, trial.timings[engine]
        first = len(head.report.nodes)
        region = tail_region(engine, nodes, first, threads, timing, trial, exclusive=False)
        whole = self.whole.program.tail
        assert whole is not None
        writes = tuple(info.name for info in self.parts.tail.graph.output)
        tail = Tail(region, whole.inputs, whole.outputs, self._reads, writes)
        versions = {**head.parts.versions, engine: self.model.engines.versions[engine]}
        program = head.program.followed_by(tail)
        parts = replace(
            head.parts, program=program, artifacts=[*head.parts.artifacts, data], versions=versions
        )
        report = replace(
            head.report,
            predicted_us=head.report.predicted_us + timing.median_us,
            notes=(f"{engine} runs the last {len(nodes)} ONNX nodes: {self.problem}", *head.report.notes),
            nodes=(
                *head.report.nodes,
                *(NodeReport(f"onnx.{node.op_type}", node.name, node.op_type) for node in nodes),
            ),
            candidates=(*head.report.candidates, *candidates_of(trial, region.nodes)),
        )
        return _Rival(parts, report)

    def _errors(
        self, measurer: WholeMeasurer, rivals: Mapping[str, _Rival], engine: str
    ) -> dict[str, tuple[float, float]]:
        """Bounds of the largest absolute and relative error, of those that agree with the engine on the whole.

        Raises CollageError where the engine itself fails.
        """
        inputs, everything = self.model.inputs, range(len(self.model.inputs))
        expected = measurer.run(engine, rivals[engine].parts, everything)
        if expected.outputs is None:
            raise CollageError(expected.message)
        rounded = any("Quantize" in node.op_type for node in all_nodes(self.model.original.graph))
        allowed = region_tolerance(dtypes_of([*inputs.values(), *expected.outputs]), rounded=rounded)
        about, found = self.whole.report, {}
        for label in rivals.keys() - {engine}:
            outputs = measurer.run(label, rivals[label].parts, everything).outputs
            if outputs is None:
                continue
            absolute, relative = difference(list(outputs), list(expected.outputs), rounded=rounded)
            if relative <= allowed:
                found[label] = about.max_abs_error + absolute, about.relative_error + relative
        return found

    def _timings(
        self, measurer: WholeMeasurer, labels: Sequence[str], key: str
    ) -> tuple[dict[str, Timing], int]:
        """Timings of one interleaved run, or those that are known, and how many were made."""
        engines = self.model.engines
        regions = [replace(r, cost_us=0.0, noise_us=0.0).to_json() for r in self.head.program.regions]
        key = f"{key}; {sorted(labels)}; {hashlib.sha256(json.dumps(regions).encode()).hexdigest()}"
        known: Any = engines.database.get_fact(_FACT, key)
        if isinstance(known, dict):
            return {name: Timing(**each) for name, each in known.items()}, 0
        engines.progress(Progress("compare", 0, 1, ", ".join(labels)))
        timings = measurer.compare(labels)
        engines.database.put_fact(_FACT, key, {name: asdict(each) for name, each in timings.items()})
        return timings, len(timings)


@dataclass(frozen=True)
class _Rival:
    """What would be handed over."""

    parts: Parts
    report: Report


def _label(engine: str) -> str:
    return f"static part placed, then {engine}"


def _told(whole: CompiledModule, note: str) -> CompiledModule:
    report = replace(whole.report, notes=(*whole.report.notes, note))
    return CompiledModule(whole.parts, report, whole.executor)
