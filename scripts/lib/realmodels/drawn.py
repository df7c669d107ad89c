"""Real inputs for a compile's samples, and others to judge its module by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime as ort

from collage.frontend.ort_session import session_options
from scripts.lib.realmodels.cases import Case, Kind, cases_of, kind_of

SAMPLES, DRAWS = range(2)
"""Seeds of inputs that have nothing in common."""


def spread(model: onnx.ModelProto, count: int, seed: int) -> tuple[Case, list[Mapping[str, Any]]]:
    """A case, and so many inputs that have little in common: of sound, windows that are half a second apart.

    ONNX Runtime carries states on from run to run. Raises UnknownModelError.
    """
    apart = 16 if kind_of(model) is Kind.HEARS else 1
    case = cases_of("", model, count * apart, seed)[0]
    session = ort.InferenceSession(
        model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    found: list[Mapping[str, Any]] = []
    state: dict[str, Any] = {}
    for run in case.runs:
        found.append({**run, **state})
        if case.state:
            outputs = dict(
                zip([o.name for o in session.get_outputs()], session.run(None, found[-1]), strict=True)
            )
            state = {taken: outputs[given] for given, taken in case.state.items()}
    return case, found[apart - 1 :: apart]
