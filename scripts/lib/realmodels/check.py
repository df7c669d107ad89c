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
from collage.frontend.ort_session import session_options
from collage.frontend.session import reference_run
from scripts.lib.realmodels.cases import TOP_1, Case


@dataclass(frozen=True)
class Result:
    """How a model did: which backends run it, the largest relative error, the share of equal decisions.

    ``noise`` is how far ONNX Runtime is from itself without its optimisations: a probability of 3e-4 is off by as much
    as 2e-4 of that there, and nobody can be asked to be nearer.
    """

    name: str
    shapes: str
    mix: str = ""
    runs: int = 0
    error: float = 0.0
    noise: float = 0.0
    equal: float = 1.0
    compile_s: float = 0.0
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether all outputs and decisions agree with ONNX Runtime's."""
        return not self.problem


def check(name: str, model: onnx.ModelProto, case: Case, options: Mapping[str, Any]) -> Result:
    """Check one model in one set of shapes. Collage and ONNX Runtime each have their own state from run to run."""
    result = Result(name, ", ".join("x".join(map(str, shape)) for shape in case.shapes.values()))
    started = time.perf_counter()
    try:
        module = collage.compile(model, shapes=case.shapes, **options)
    except collage.CollageError as failure:
        return replace(
            result, compile_s=time.perf_counter() - started, problem=f"does not compile: {failure}"
        )
    regions = Counter(region.backend for region in module.program.regions)
    mix = ", ".join(f"{count} {backend}" for backend, count in regions.most_common())
    result = replace(result, mix=mix, compile_s=time.perf_counter() - started)
    session, unoptimised = _session(model), _session(model, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    names = [each.name for each in session.get_outputs()]
    mine: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    others: dict[str, Any] = {}
    shares: list[float] = []
    for number, run in enumerate(case.runs):
        expected = dict(zip(names, session.run(None, {**run, **theirs}), strict=True))
        again = dict(zip(names, unoptimised.run(None, {**run, **others}), strict=True))
        try:
            found = module.run({**run, **mine})
        except collage.CollageError as failure:
            return replace(result, runs=number, problem=f"run {number}: {failure}")
        for output, reference in expected.items():
            _, noise = difference(again[output], reference)
            allowed = region_tolerance(dtypes_of([reference])) + noise
            _, error = difference(found[output], reference)
            result = replace(
                result,
                error=max(result.error, error),
                noise=max(result.noise, noise),
                runs=number + 1,
            )
            if not error <= allowed and not _as_good(
                model, {**run, **theirs}, output, found[output], reference
            ):
                text = f"run {number}: {output} is off by {error:.1e} of its scale ({allowed:.0e} allowed)"
                result = replace(result, problem=result.problem or text)
            if output in case.decides:
                shares.append(_equal(found[output], reference, case.decides[output]))
        mine = {taken: found[given] for given, taken in case.state.items()}
        theirs = {taken: expected[given] for given, taken in case.state.items()}
        others = {taken: again[given] for given, taken in case.state.items()}
    equal = float(np.mean(shares)) if shares else 1.0
    if equal < 1:
        result = replace(result, problem=result.problem or f"{1 - equal:.2%} of its decisions differ")
    return replace(result, equal=equal)


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
    return as_good_as_can_be(
        np.asarray(found), np.asarray(reference), allowed, nearby, precise, channels_first=False
    )


def _session(
    model: onnx.ModelProto, level: Any = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
) -> ort.InferenceSession:
    options = session_options()
    options.graph_optimization_level = level
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _equal(found: Any, expected: Any, above: float | None) -> float:
    """The share of equal decisions. Numbers that are almost equal to the best, or to the bound, are no decisions."""
    margin = region_tolerance(dtypes_of([expected])) * float(np.abs(expected).max())
    if above is TOP_1:
        chosen = np.take_along_axis(expected, found.argmax(-1)[..., np.newaxis], -1)[..., 0]
        return float(np.mean(chosen >= expected.max(-1) - margin))
    same = ((found > above) == (expected > above)) | (np.abs(expected - above) <= margin)
    return float(np.mean(same))
