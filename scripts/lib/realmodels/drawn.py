"""As many real inputs as are wanted, from a seed: samples for a compile, and other inputs to judge its module by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from collage.frontend.ort_session import session_options
from scripts.lib import ROOT
from scripts.lib.realmodels import pictures, text
from scripts.lib.realmodels.cases import TOP_1, Case, Kind, inputs_of, kind_of
from scripts.lib.realmodels.sound import windows_of
from scripts.lib.realmodels.speech import speech_and_noise

SAMPLES, DRAWS, TASK = range(3)
"""Seeds of inputs that have nothing in common."""
_RATE = 16000
_FILES = 300
_AT_ONCE = 16


def drawn(model: onnx.ModelProto, count: int, seed: int) -> Case:
    """One set of shapes, and so many inputs to run in order. Raises UnknownModelError."""
    kind, output = kind_of(model), model.graph.output[0].name
    rng = np.random.default_rng([0xD0, seed])
    if kind is Kind.FINDS_TEXT:
        runs = [{"x": pictures.page(320, 320, 1000 * (seed + 1) + n)} for n in range(count)]
        return Case({"x": (1, 3, 320, 320)}, runs, {}, {output: 0.3})
    if kind is Kind.READS:
        runs = [{"x": pictures.line(48, 320, pictures.sentence(rng))[np.newaxis]} for _ in range(count)]
        return Case({"x": (1, 3, 48, 320)}, runs, {}, {output: TOP_1})
    if kind is Kind.TURNS:
        turned = [
            pictures.line(48, 192, pictures.sentence(rng), upside_down=n % 2 == 1) for n in range(count)
        ]
        return Case({"x": (1, 3, 48, 192)}, [{"x": each[np.newaxis]} for each in turned], {}, {output: TOP_1})
    if kind is Kind.FILES:
        contents = list(text.repository_files(ROOT, _FILES))[seed::3][:count]
        rows = [text.features(content, 1024, 1024)[np.newaxis] for content in contents]
        return Case({"bytes": (1, 2048)}, [{"bytes": row} for row in rows], {}, {output: TOP_1})
    return _heard(model, count, seed)


def seconds(count: int) -> float:
    """The seconds of sound in so many windows of 32 ms."""
    return count * 0.032


def _heard(model: onnx.ModelProto, count: int, seed: int) -> Case:
    output, inputs = model.graph.output[0].name, inputs_of(model)
    zeros = np.zeros((2, 1, 128), np.float32)
    if kind_of(model) is Kind.HEARS:
        heard = windows_of(speech_and_noise(_RATE, seconds(count) + 0.1, seed), _RATE)[:count]
        more = {"sr": np.array(_RATE)} if "sr" in inputs else {}
        runs: list[Mapping[str, Any]] = [{"input": w[np.newaxis], "state": zeros, **more} for w in heard]
        shapes = {"input": (1, heard.shape[1]), "state": zeros.shape}
        return Case(shapes, runs, {"stateN": "state"}, {output: 0.5})
    heard = windows_of(speech_and_noise(_RATE, seconds(count * _AT_ONCE) + 0.1, seed), _RATE)
    zeros = np.zeros((1, 1, 128), np.float32)
    runs = [{"input": heard[n * _AT_ONCE : (n + 1) * _AT_ONCE], "h": zeros, "c": zeros} for n in range(count)]
    return Case({"input": (_AT_ONCE, heard.shape[1])}, runs, {"hn": "h", "cn": "c"}, {output: 0.5})


def fed(model: onnx.ModelProto, case: Case) -> list[Mapping[str, Any]]:
    """All inputs of each run, with the state that ONNX Runtime carries on from the run before."""
    if not case.state:
        return list(case.runs)
    session = ort.InferenceSession(
        model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_outputs()]
    found: list[Mapping[str, Any]] = []
    state: dict[str, Any] = {}
    for run in case.runs:
        feeds = {**run, **state}
        found.append(feeds)
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        state = {taken: outputs[given] for given, taken in case.state.items()}
    return found


def spread(model: onnx.ModelProto, count: int, seed: int) -> tuple[Case, list[Mapping[str, Any]]]:
    """A case, and so many inputs that have little in common: of sound, windows that are half a second apart."""
    apart = 16 if kind_of(model) is Kind.HEARS else 1
    case = drawn(model, count * apart, seed)
    return case, fed(model, case)[apart - 1 :: apart]
