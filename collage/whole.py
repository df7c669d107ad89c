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
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from collage.backends.base import Backend, BackendKind
from collage.backends.onnx_engine import MAX_BYTES
from collage.errors import ModelError
from collage.frontend.random_inputs import random_value
from collage.frontend.shapes import model_inputs
from collage.frontend.value_types import value_type
from collage.measure_db.database import Database
from collage.measure_db.effort import Effort
from collage.measure_db.process import Workers
from collage.measure_db.timing import Timing
from collage.measure_db.whole import Trial, WholeMeasurer
from collage.progress import Progress
from collage.report import CandidateReport, NodeReport, Report
from collage.runtime.module import CompiledModule, Parts, load_parts
from collage.schedule.program import whole_program
from collage.schedule.region import Region
from collage.schedule.whole import ValuePort, Whole
from collage.target import Target

_FACT = "whole_model"
_UNMEASURED = Timing(0.0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class WholeModel:
    """A model with all that compiling it whole takes; ``samples`` are the user's inputs by name.

    ``reason`` says, in a sentence, why there is no placement.
    """

    original: onnx.ModelProto
    name: str
    reason: str
    backends: Mapping[str, Backend]
    versions: Mapping[str, str]
    target: Target
    samples: Mapping[str, Any]
    seed: int

    def compile(
        self,
        database: Database,
        workers: Workers,
        effort: Effort,
        time_limit_s: float,
        progress: Callable[[Progress], None],
    ) -> CompiledModule:
        """The module of the fastest engine that is right. Raises ModelError with all reasons when there is none."""
        started = time.perf_counter()
        engines = {n: b for n, b in self.backends.items() if b.kind is BackendKind.ENGINE}
        if self.original.ByteSize() >= MAX_BYTES:
            raise ModelError(
                f"{self.reason} Engines cannot take it whole: its weights exceed protobuf's 2 GiB."
            )
        data: bytes = self.original.SerializeToString(deterministic=True)
        key = self._key(data, engines, effort)
        known = database.get_fact(_FACT, key)
        if isinstance(known, dict):
            trial, made = Trial.from_json(known), 0
        else:
            progress(Progress("measure", 0, 1, f"the whole model on {', '.join(engines)}"))
            inputs, threads = self._inputs(), self.target.threads
            with WholeMeasurer(
                self.original, inputs, engines, threads, workers, effort, time_limit_s
            ) as measurer:
                trial, made = measurer.trial(), len(engines)
            database.put_fact(_FACT, key, trial.to_json())
        ranked = sorted(trial.timings, key=lambda n: (trial.timings[n].median_us, n))
        if not ranked and len(self.samples) < len(model_inputs(self.original)):
            ranked = list(trial.loaded)  # inputs of the user's may serve where those made up did not
        if not ranked:
            reasons = "; ".join(f"{n}: {text}" for n, text in trial.refused.items())
            raise ModelError(
                f"{self.reason} And no engine can run the model whole: "
                + (reasons or "there is none among the backends")
            )
        return self._module(data, ranked[0], trial, made, time.perf_counter() - started)

    def _key(self, data: bytes, engines: Mapping[str, Backend], effort: Effort) -> str:
        digest = hashlib.sha256(data)
        for name in sorted(self.samples):
            # Not its text, which leaves out most of a large array.
            digest.update(pickle.dumps((name, self.samples[name])))
        versions = ", ".join(f"{name} {self.versions[name]}" for name in sorted(engines))
        return f"{digest.hexdigest()}; {self.target.hardware}; {self.target.threads} threads; {versions}{effort.mark}"

    def _inputs(self) -> list[Any]:
        rng = np.random.default_rng(self.seed)
        found = []
        for info in model_inputs(self.original):
            if info.name in self.samples:
                found.append(self.samples[info.name])
                continue
            try:
                found.append(random_value(value_type(info.type), rng))
            except TypeError as error:
                raise ModelError(
                    f"{self.reason} Input {info.name}: {error}; give one to compile with."
                ) from None
        return found

    def _module(self, data: bytes, winner: str, trial: Trial, made: int, seconds: float) -> CompiledModule:
        nodes = self.original.graph.node
        timing = trial.timings.get(winner, _UNMEASURED)
        region = Region(
            backend=winner,
            ops=tuple(f"onnx.{node.op_type}" for node in nodes),
            nodes=tuple(range(len(nodes))),
            sources=tuple(node.name for node in nodes),
            inputs=(),
            outputs=(),
            threads=self.target.threads,
            cost_us=timing.median_us,
            noise_us=timing.noise_us,
            exclusive=True,
        )
        whole = Whole(_ports(model_inputs(self.original)), _ports(self.original.graph.output))
        program = whole_program(region, whole, self.target.threads)
        parts = Parts(program, [data], {}, self.target, {winner: self.versions[winner]})
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
            versions=dict(self.versions),
            finalists={
                name: {"median_us": t.median_us, "noise_us": t.noise_us, "min_us": t.min_us}
                for name, t in trial.timings.items()
            },
            notes=(f"{winner} runs the model whole: {self.reason}", *trial.notes),
            nodes=tuple(NodeReport(f"onnx.{node.op_type}", node.name, node.op_type) for node in nodes),
            candidates=tuple(_candidates(trial, region.nodes)),
        )
        return CompiledModule(parts, report, load_parts(parts, self.backends))


def _ports(infos: Sequence[onnx.ValueInfoProto]) -> tuple[ValuePort, ...]:
    return tuple(ValuePort(info.name, value_type(info.type)) for info in infos)


def _candidates(trial: Trial, nodes: tuple[int, ...]) -> list[CandidateReport]:
    measured = [
        CandidateReport(nodes, name, "whole model", cost_us=t.median_us, noise_us=t.noise_us)
        for name, t in trial.timings.items()
    ]
    refused = [CandidateReport(nodes, n, "whole model", reason=text) for n, text in trial.refused.items()]
    return measured + refused
