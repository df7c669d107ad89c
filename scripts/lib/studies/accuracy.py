"""What networks with real weights decide within a tolerance, and whether that is what they decide in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from collage import api
from collage.bench.compiled import Options
from collage.core.progress import Progress
from collage.frontend.session import Reference
from scripts.lib.realmodels.cases import TOP_1, Case, Kind, kind_of
from scripts.lib.realmodels.drawn import SAMPLES, TASK, drawn, seconds, spread
from scripts.lib.realmodels.files import ModelFile
from scripts.lib.realmodels.reading import characters, read

_SAMPLES = 40


@dataclass(frozen=True)
class Asked:
    """How much is run within which tolerance: ``lines`` of text, other pictures or files, ``seconds`` of sound.

    ``budget_s`` are the seconds of each compile; None stands for as many as it takes.
    """

    tolerance: float
    lines: int = 50
    seconds: float = 30.0
    quick: bool = False
    budget_s: float | None = None


def accuracy(
    file: ModelFile, show: Callable[[Progress], None], *, asked: Asked, options: Options
) -> dict[str, Any]:
    """Compile the model within the tolerance on real samples, run the task, and compare decisions with ONNX Runtime's.

    Collage and ONNX Runtime carry their own state from run to run. ``decisions`` are the numbers of all decisions, of
    ``different`` ones, and of each kind of decision in float32 (``of_each``). Raises UnknownModelError and what a
    compile raises.
    """
    model = onnx.load_model_from_string(file.data)
    kind = kind_of(model)
    heard = kind in (Kind.HEARS, Kind.HEARS_MANY)
    count = round(asked.seconds / seconds(1 if kind is Kind.HEARS else 16)) if heard else asked.lines
    _, samples = spread(model, _SAMPLES, SAMPLES)
    task = drawn(model, count, TASK)
    module = api.compile(
        model,
        shapes=task.shapes,
        inputs=samples,
        tolerance=asked.tolerance,
        quick=asked.quick,
        budget_s=asked.budget_s,
        threads=options.threads,
        db=options.db,
        progress=show,
    )
    ours, theirs = _decided(model, task, module.run), _decided(model, task, _reference(model))
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    report, regions = module.report, module.program.executed
    kinds = sorted(set(theirs))
    return {
        "model": file.name,
        "task": kind.value,
        "runs": len(task.runs),
        "decisions": len(theirs),
        "different": len(different),
        "of_each": {each: theirs.count(each) for each in kinds} if len(kinds) <= 2 else {},
        "examples": [{"ours": a, "float32": b} for a, b in different[:3]],
        "error": None if report.errors is None else report.errors.measured,
        "reduced": sum(1 for region in regions if region.precision),
        "regions": len(regions),
        "notes": list(report.notes),
    }


def _reference(model: onnx.ModelProto) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """ONNX Runtime without optimisation, with outputs by name."""
    reference, names = Reference(model), [each.name for each in model.graph.output]
    return lambda feeds: dict(zip(names, reference.run(dict(feeds)), strict=True))


def _decided(
    model: onnx.ModelProto, case: Case, run: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> list[str]:
    """All decisions in words, in order."""
    known, found = characters(model), list[str]()
    reads = kind_of(model) is Kind.READS
    ((output, above),) = case.decides.items()
    state: dict[str, Any] = {}
    for inputs in case.runs:
        outputs = run({**inputs, **state})
        state = {taken: outputs[given] for given, taken in case.state.items()}
        scores = np.asarray(outputs[output])
        if reads:
            found += [read(line, known) for line in scores]
        elif above is TOP_1:
            found += [str(label) for label in scores.argmax(-1).ravel()]
        else:
            found += ["yes" if each > above else "no" for each in scores.ravel()]
    return found
