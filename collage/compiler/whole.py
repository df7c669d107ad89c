"""Models that no placement can be made of: the fastest engine runs the model as its author wrote it.

That is what remains where TVM cannot import a model, shapes depend on data, or values are no tensors (strings,
sequences, optionals).
"""

from __future__ import annotations

import hashlib
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from collage.backends.base import Backend, BackendKind
from collage.backends.onnx_engine import MAX_BYTES
from collage.core.library_text import library_text
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.frontend.compared import compared_numbers
from collage.frontend.random_inputs import random_value
from collage.frontend.shapes import Shapes, model_inputs
from collage.frontend.value_types import value_type
from collage.graph.value_type import ValueType
from collage.kernel.target import Target
from collage.measure_db.database import Database
from collage.measure_db.effort import Effort
from collage.measure_db.process import Workers
from collage.measure_db.results import GATE
from collage.measure_db.timing import Timing
from collage.measure_db.whole import Trial, WholeMeasurer
from collage.module.module import CompiledModule
from collage.report.report import CandidateReport, NodeReport, Report, figures
from collage.runtime.parts import Parts, load_parts
from collage.schedule.program import make_program
from collage.schedule.region import Region
from collage.schedule.tail import Tail, ValuePort

_FACT = "whole_model"
_UNMEASURED = Timing(0.0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class Engines:
    """The graph engines among the backends, and all that trying them on a model takes."""

    backends: Mapping[str, Backend]
    versions: Mapping[str, str]
    threads: int
    hardware: str
    database: Database
    workers: Workers
    effort: Effort
    time_limit_s: float
    progress: Callable[[Progress], None]

    @cached_property
    def named(self) -> Mapping[str, Backend]:
        """The engines by name."""
        return {n: b for n, b in self.backends.items() if b.kind is BackendKind.ENGINE}

    def mark(self, *about: str) -> str:
        """A key for facts about a model, whatever it is made of, on these engines."""
        used = ", ".join(f"{name} {self.versions[name]}" for name in sorted(self.named))
        return f"{'; '.join(about)}; {self.hardware}; {self.threads} threads; {used}; gate {GATE}{self.effort.mark}"

    def trial(
        self, model: onnx.ModelProto, inputs: Callable[[], Sequence[Any]], key: str, what: str
    ) -> tuple[Trial, int]:
        """What each engine makes of the model, and how many measurements that took: none where it is known."""
        known = self.database.get_fact(_FACT, key)
        if isinstance(known, dict):
            return Trial.from_json(known), 0
        self.progress(Progress("measure", 0, 1, f"{what} on {', '.join(self.named)}"))
        with WholeMeasurer(
            model, inputs(), self.named, self.threads, self.workers, self.effort, self.time_limit_s
        ) as measurer:
            trial = measurer.trial()
        self.database.put_fact(_FACT, key, trial.to_json())
        return trial, len(self.named)


@dataclass(frozen=True)
class WholeModel:
    """A model with all that compiling it whole takes; ``samples`` are the user's inputs by name.

    ``reason`` says, in a sentence, why there is no placement. ``shapes`` are those of inputs whose extents the model
    leaves open; made-up inputs are ``numbers`` where there is one for them.
    """

    original: onnx.ModelProto
    name: str
    reason: str
    engines: Engines
    target: Target
    samples: Mapping[str, Any]
    seed: int
    shapes: Shapes = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)

    def compile(self) -> CompiledModule:
        """The module of the fastest engine that is right. Raises ModelError with all reasons when there is none."""
        started = time.perf_counter()
        if self.original.ByteSize() >= MAX_BYTES:
            raise ModelError(
                f"{self.reason} Engines cannot take it whole: its weights exceed protobuf's 2 GiB."
            )
        trial, made = self.engines.trial(
            self.original, lambda: [*self.inputs.values()], self.key, "the whole model"
        )
        ranked = sorted(trial.timings, key=lambda n: (trial.timings[n].median_us, n))
        if not ranked and len(self.samples) < len(model_inputs(self.original)):
            ranked = list(trial.loaded)  # inputs of the user's may serve where those made up did not
        if not ranked:
            reasons = "; ".join(f"{n}: {library_text(text)}" for n, text in trial.refused.items())
            raise ModelError(
                f"{self.reason} And no engine can run the model whole: "
                + (reasons or "there is none among the backends")
            )
        return self._module(ranked[0], trial, made, time.perf_counter() - started)

    @cached_property
    def key(self) -> str:
        """Of facts about the model, whole."""
        digest = hashlib.sha256(self._data)
        for name in sorted(self.samples):
            # Not its text, which leaves out most of a large array.
            digest.update(pickle.dumps((name, self.samples[name])))
        for made_up in (self.shapes, self.numbers):
            if made_up:
                digest.update(repr(sorted(made_up.items())).encode())
        return self.engines.mark(digest.hexdigest())

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """The user's values, and random ones for the other inputs, in the model's order."""
        rng = np.random.default_rng(self.seed)
        found = {}
        for name, kind in self._takes:
            if name in self.samples:
                found[name] = self.samples[name]
                continue
            try:
                found[name] = random_value(kind, rng)
            except TypeError as error:
                raise ModelError(f"{self.reason} Input {name}: {error}; give one to compile with.") from None
            if name in self.numbers:
                found[name] = np.full_like(found[name], self.numbers[name])
        return found

    @property
    def _takes(self) -> tuple[tuple[str, ValueType], ...]:
        """The inputs by name, of ``shapes``."""
        kinds = {port.name: port.type for port in ports_of(model_inputs(self.original))}
        return tuple(
            (name, replace(kind, shape=tuple(self.shapes[name])) if name in self.shapes else kind)
            for name, kind in kinds.items()
        )

    @cached_property
    def _data(self) -> bytes:
        data: bytes = self.original.SerializeToString(deterministic=True)
        return data

    def _module(self, winner: str, trial: Trial, made: int, seconds: float) -> CompiledModule:
        nodes = self.original.graph.node
        timing = trial.timings.get(winner, _UNMEASURED)
        taken = tuple(ValuePort(name, kind) for name, kind in self._takes)
        ports = taken, ports_of(self.original.graph.output)
        tail = Tail(
            tail_region(winner, nodes, 0, self.target.threads, timing, trial, exclusive=True),
            *ports,
            *(tuple(port.name for port in side) for side in ports),
        )
        program = make_program((), (), (), {}, self.target.threads).followed_by(tail)
        versions = self.engines.versions
        parts = Parts(program, [self._data], {}, self.target, {winner: versions[winner]})
        absolute, relative = trial.errors.get(winner, (math.inf, math.inf))
        report = Report(
            model=self.name,
            target=str(self.target),
            threads=self.target.threads,
            predicted_us=timing.median_us,
            measured_us=timing.median_us,
            max_abs_error=absolute,
            relative_error=relative,
            measurements_made=made,
            search_s=0.0,
            compile_s=seconds,
            epsilon_us=0.0,
            versions=dict(versions),
            finalists=figures(trial.timings),
            notes=(f"{winner} runs the model whole: {self.reason}", *trial.notes),
            nodes=tuple(NodeReport(f"onnx.{node.op_type}", node.name, node.op_type) for node in nodes),
            candidates=tuple(candidates_of(trial, tail.region.nodes)),
        )
        return CompiledModule(parts, report, load_parts(parts, self.engines.backends))


def compile_whole(
    model: WholeModel, as_written: Callable[[], onnx.ModelProto], shapes: Shapes
) -> tuple[CompiledModule, WholeModel]:
    """The module of the fastest engine that is right, and the form of the model that it runs.

    ``as_written`` gives the model as its author wrote it. That goes to the engines where none takes the one that
    ``shapes`` are written into: a network for each of two sampling rates, say, and a length that only one of them
    knows. Raises ModelError when they take neither.
    """
    try:
        return _on_likely_numbers(model)
    except ModelError as error:
        problem = error
    untouched = as_written()
    if not model.engines.named or untouched == model.original:
        raise problem
    given = ", on inputs of the given shapes" if shapes else ""
    why = f"No engine takes what Collage makes of it, so it runs as its author wrote it{given}."
    reason = f"{model.reason.rstrip('.')}. {why}"
    form = replace(model, original=untouched, reason=reason, shapes=shapes)
    try:
        return _on_likely_numbers(form)
    except ModelError as error:
        raise problem from error


def _on_likely_numbers(model: WholeModel) -> tuple[CompiledModule, WholeModel]:
    """The module, measured with numbers that the model compares its inputs with, unless it only runs on others."""
    likely = replace(model, numbers=compared_numbers(model.original))
    module = likely.compile()
    if module.report.finalists or not likely.numbers:
        return module, likely
    other = model.compile()
    return (other, model) if other.report.finalists else (module, likely)


def tail_region(
    engine: str,
    nodes: Sequence[onnx.NodeProto],
    first: int,
    threads: int,
    timing: Timing,
    trial: Trial,
    *,
    exclusive: bool,
) -> Region:
    """The region of ONNX nodes that an engine runs; they are numbered from ``first``."""
    return Region(
        backend=engine,
        ops=tuple(f"onnx.{node.op_type}" for node in nodes),
        nodes=tuple(range(first, first + len(nodes))),
        sources=tuple(node.name for node in nodes),
        inputs=(),
        outputs=(),
        threads=threads,
        cost_us=timing.median_us,
        noise_us=timing.noise_us,
        exclusive=exclusive,
        finite_only=engine in trial.finite_only,
    )


def ports_of(infos: Sequence[onnx.ValueInfoProto]) -> tuple[ValuePort, ...]:
    """Inputs or outputs with their types."""
    return tuple(ValuePort(info.name, value_type(info.type)) for info in infos)


def candidates_of(trial: Trial, nodes: tuple[int, ...]) -> list[CandidateReport]:
    """A trial as the report has it, for the nodes that it was about."""
    measured = [
        CandidateReport(nodes, name, "whole model", cost_us=t.median_us, noise_us=t.noise_us)
        for name, t in trial.timings.items()
    ]
    refused = [CandidateReport(nodes, n, "whole model", reason=text) for n, text in trial.refused.items()]
    return measured + refused
