"""Compile a model for a case, run its inputs in order, and compare each output with ONNX Runtime's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import collage
from collage.check.compare import difference, dtypes_of, region_tolerance
from collage.check.nearby import as_good_as_can_be, nearby_outputs
from collage.check.precise import precise_run
from collage.frontend.session import reference_run
from scripts.lib.realmodels.cases import Case, session_of

Values = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """The backends that run a model, its largest relative error, and the first ``problem``, if there is one.

    ``noise`` is how far ONNX Runtime is from itself without its optimisations: a probability of 3e-4 is off by as much
    as 2e-4 of that there, and nobody can be asked to be nearer.
    """

    name: str
    shapes: str
    mix: str = ""
    runs: int = 0
    error: float = 0.0
    noise: float = 0.0
    compile_s: float = 0.0
    problem: str = ""


def check(name: str, model: onnx.ModelProto, case: Case, options: Mapping[str, Any]) -> Result:
    """Check one model in one set of shapes. Collage and ONNX Runtime each have their own state from run to run."""
    result = Result(name, ", ".join("x".join(map(str, shape)) for shape in case.shapes.values()))
    started = time.perf_counter()
    try:
        module = collage.compile(model, shapes=case.shapes, **options)
    except collage.CollageError as failure:
        return replace(result, problem=f"does not compile: {failure}")
    backends = Counter(region.backend for region in module.program.regions).most_common()
    mix = ", ".join(f"{count} {backend}" for backend, count in backends)
    result = replace(result, mix=mix, compile_s=time.perf_counter() - started)
    session, plain = session_of(model), session_of(model, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    names = [each.name for each in session.get_outputs()]
    mine: Values = {}
    theirs: Values = {}
    others: Values = {}
    for number, run in enumerate(case.runs):
        expected = dict(zip(names, session.run(None, {**run, **theirs}), strict=True))
        again = dict(zip(names, plain.run(None, {**run, **others}), strict=True))
        try:
            found = module.run({**run, **mine})
        except collage.CollageError as failure:
            return replace(result, runs=number, problem=f"run {number}: {failure}")
        for output, reference in expected.items():
            _, noise = difference(again[output], reference)
            _, error = difference(found[output], reference)
            allowed = region_tolerance(dtypes_of([reference])) + noise
            problem = result.problem
            if not error <= allowed and not _as_good(
                model, {**run, **theirs}, output, found[output], reference
            ):
                problem = problem or f"run {number}: {output} is off by {error:.1e} ({allowed:.0e} allowed)"
            worst = max(result.error, error), max(result.noise, noise)
            result = replace(result, error=worst[0], noise=worst[1], runs=number + 1, problem=problem)
        mine, theirs, others = (
            {taken: outputs[given] for given, taken in case.state.items()}
            for outputs in (found, expected, again)
        )
    return result


def _as_good(
    model: onnx.ModelProto, feeds: Mapping[str, Any], output: str, found: Any, reference: Any
) -> bool:
    """Whether an output that is a little off is as good as can be expected, as a compile judges it.

    What the last bits of the inputs change in the output says how exact it can be, and float64 arithmetic is the judge.
    """
    position = [each.name for each in model.graph.output].index(output)
    feeds = {name: np.asarray(array) for name, array in feeds.items()}

    def precise() -> Any:
        outputs = precise_run(model, feeds)
        return None if outputs is None else outputs[position]

    nearby = [each[position] for each in nearby_outputs(model, feeds, reference_run)]
    allowed = region_tolerance(dtypes_of([reference]))
    arrays = np.asarray(found), np.asarray(reference)
    return as_good_as_can_be(*arrays, allowed, nearby, precise, channels_first=False)
