"""A model in two parts against the whole: the placed prefix with an engine for the suffix, and one engine for all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from collage.check.compare import difference, dtypes_of, region_tolerance
from collage.compiler.engine_trials import OnEngines, engine_region, events_of, mark, trial_of
from collage.compiler.events import Event, Measured, Noted
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context
from collage.compiler.whole_form import WholeForm
from collage.core.progress import Progress
from collage.errors import CollageError
from collage.frontend.model_artifacts import artifact_of
from collage.frontend.read.randomness import Randomness
from collage.frontend.read.scopes import all_nodes
from collage.frontend.read.shapes import model_inputs
from collage.frontend.relax.importer import DataDependentError
from collage.frontend.rewrite.split import Split
from collage.kernel.frames import Framed
from collage.kernel.model_artifact import hashed
from collage.kernel.options import BuildOptions
from collage.measure.timing.interleave import ties
from collage.measure.whole import WholeMeasurer, WholeSettings
from collage.measure.whole_trial import EngineTrial
from collage.measure_db.keys import Fact, busiest, read_timings, write_timings
from collage.measure_db.results import Timing
from collage.report.words import split_words
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts, load_suffix
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix

_TIMINGS: Fact[Mapping[str, Timing]] = Fact("static_part", write_timings, read_timings, busiest)
"""The name, and the words in keys and labels, are those that databases have had from the start."""


@dataclass(frozen=True)
class SuffixComparison:
    """The two compilations that are compared: ``whole`` on one engine, and ``prefix``, which was placed.

    ``form`` is what the engines were tried on as a whole, and ``problem`` is why it was not placed.
    """

    context: Context
    whole: Compilation
    prefix: Compilation
    parts: Split
    form: WholeForm
    problem: DataDependentError

    def select(self) -> Compilation:
        """The compilation of the whole model, or that of the two parts where these are faster and right."""
        ran = self._outputs()
        if isinstance(ran, str):
            return self._not_used(f"its static part fails: {ran}")
        read = [{**self.form.inputs, **ran}[name] for name in self._reads]
        data = artifact_of(self.parts.suffix)
        key = f"{mark(self.context, self.form.digest)}; tail {hashed(data).hexdigest()}"
        asked = OnEngines(self.parts.suffix, read, key, "what depends on data")
        trial, measured = trial_of(self.context, asked)
        staged = {_label(engine): self._staged(engine, data, trial) for engine in trial.timings}
        (engine,) = {region.backend for region in self.whole.result.parts.program.regions}
        try:
            with self._measurer() as measurer:
                right = self._errors(measurer, {engine: self.whole.result.parts, **staged}, engine)
                if not right:
                    return self._not_used(
                        "its static part is not placed: no engine runs the rest, or the outputs are other numbers"
                    )
                timings, compared = self._timings(measurer, [engine, *right], key)
        except CollageError as error:
            return self._not_used(f"its static part is not placed: compared with the whole, {error}")
        alike = ties(timings)
        best = engine if engine in alike else alike[0]  # one engine is simpler than two parts
        every = {**self.whole.result.timings, **timings}
        if best == engine:
            selected = replace(self.whole.result, timings=every, measured_us=timings[engine].median_us)
            whole = replace(self.whole, selected=selected)
            return whole.told(measured, compared, *_measured(self.prefix))
        (name,) = (each for each in trial.timings if _label(each) == best)
        selected = self._selected(staged[best], trial.timings[name], right[best])
        selected = replace(selected, label=best, timings=every, measured_us=timings[best].median_us)
        nodes = self.parts.suffix.graph.node
        first = self._suffix_starts
        note = Noted(f"{name} runs the last {len(nodes)} ONNX nodes: {self.problem}")
        found = replace(
            self.prefix,
            selected=selected,
            form=self.form,
            on_engine=self.parts.suffix,
            log=(note, *self.prefix.log),
        )
        return found.told(
            *(measured, compared, *_measured(self.whole)),
            *events_of(trial, tuple(range(first, first + len(nodes)))),
        )

    def _not_used(self, note: str) -> Compilation:
        return self.whole.told(*_measured(self.prefix), Noted(note))

    def _outputs(self) -> Mapping[str, object] | str:
        """The prefix's outputs by name for the form's inputs, or the reason why it has none."""
        numbers = {name: number for number, name in enumerate(self.form.inputs)}
        program = self.prefix.result.parts.program
        with self._measurer() as measurer:
            ran = measurer.run(
                "prefix", self.prefix.result.parts, [numbers[port.name] for port in program.model_inputs]
            )
        if ran.outputs is None:
            return ran.message
        return {port.name: value for port, value in zip(program.model_outputs, ran.outputs, strict=True)}

    def _measurer(self) -> WholeMeasurer:
        """Runs modules in a worker: what is right by itself may yet fail beside an engine."""
        context, inputs = self.context, [*self.form.inputs.values()]
        options = context.options
        settings = WholeSettings(context.target.threads, options.effort, options.time_limit_s)
        return WholeMeasurer(self.form.original, inputs, context.backends, settings, context.workers)

    @property
    def _reads(self) -> tuple[str, ...]:
        return tuple(info.name for info in model_inputs(self.parts.suffix))

    @property
    def _suffix_starts(self) -> int:
        """The number of the suffix's first node in the report."""
        return len(self.prefix.imported.graph.nodes)

    def _staged(self, engine: str, data: bytes | Framed, trial: EngineTrial) -> Parts:
        """The prefix's module with the suffix, as ``data``, on an engine after it."""
        prefix = self.prefix.result.parts
        options = BuildOptions(self.context.target.threads)
        region = engine_region(engine, self.parts.suffix.graph.node, self._suffix_starts, trial, options)
        whole = self.whole.result.parts.program.suffix
        assert whole is not None
        writes = tuple(info.name for info in self.parts.suffix.graph.output)
        suffix = Suffix(region, whole.inputs, whole.outputs, self._reads, writes)
        versions = {**prefix.versions, engine: self.context.versions[engine]}
        program = prefix.program.followed_by(suffix)
        return replace(prefix, program=program, artifacts=[*prefix.artifacts, data], versions=versions)

    def _selected(self, parts: Parts, suffix: Timing, errors: tuple[float, float]) -> Selection:
        """The selection of the prefix, followed by the suffix."""
        selected = self.prefix.result
        executor = selected.executor.clone()
        assert isinstance(executor, Executor)
        return replace(
            selected,
            parts=parts,
            executor=load_suffix(parts, executor, self.context.backends),
            predicted_us=selected.predicted_us + suffix.median_us,
            max_abs_error=errors[0],
            relative_error=errors[1],
        )

    def _errors(
        self, measurer: WholeMeasurer, modules: Mapping[str, Parts], engine: str
    ) -> dict[str, tuple[float, float]]:
        """Bounds of the absolute and relative error, by label, of the modules that agree with the engine on the whole.

        Raises CollageError where the engine itself fails.
        """
        inputs, everything = self.form.inputs, range(len(self.form.inputs))
        expected = measurer.run(engine, modules[engine], everything)
        if expected.outputs is None:
            raise CollageError(expected.message)
        rounded = any("Quantize" in node.op_type for node in all_nodes(self.form.original.graph))
        allowed = region_tolerance(dtypes_of([*inputs.values(), *expected.outputs]), rounded=rounded)
        drawn = Randomness(self.form.original).outputs
        about, found = self.whole.result, {}
        for label in modules.keys() - {engine}:
            outputs = measurer.run(label, modules[label], everything).outputs
            if outputs is None:
                continue
            made, wanted = list(outputs), list(expected.outputs)
            absolute, relative = difference(made, wanted, rounded=rounded, drawn=drawn)
            if relative <= allowed:
                found[label] = about.max_abs_error + absolute, about.relative_error + relative
        return found

    def _timings(
        self, measurer: WholeMeasurer, labels: Sequence[str], about: str
    ) -> tuple[Mapping[str, Timing], Measured]:
        """Timings of one interleaved run, from the database or made now, and how many of them were made now."""
        threads = self.context.target.threads
        regions = [region_marks(region, threads) for region in self.prefix.result.parts.program.regions]
        digest = hashlib.sha256(json.dumps(regions).encode()).hexdigest()
        key = _TIMINGS.at(f"{about}; {sorted(labels)}; {digest}")
        known = key.look_up(self.context.database)
        timings = self.context.database.remember(key, partial(self._compare, measurer, labels))
        return timings, Measured(0 if known is not None else len(timings))

    def _compare(self, measurer: WholeMeasurer, labels: Sequence[str]) -> Mapping[str, Timing]:
        self.context.progress(Progress("compare", 0, 1, ", ".join(labels)))
        return measurer.compare(labels)


def region_marks(region: Region, threads: int) -> dict[str, Any]:
    """What a prefix's time depends on in one of its regions, in the form that databases have it."""
    marks = replace(region, cost_us=0.0, noise_us=0.0).to_json()
    del marks["original"]
    marks["split"] = split_words(region.candidate, threads)
    return marks


def _measured(compilation: Compilation) -> list[Event]:
    """The events that count measurements. They belong to the report, whichever compilation is used."""
    return [event for event in compilation.log if isinstance(event, Measured)]


def _label(engine: str) -> str:
    return f"static part placed, then {engine}"
