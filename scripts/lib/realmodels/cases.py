"""Shapes to compile a model for, and real inputs; models are recognised by the names that the packages use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from collage.frontend.ort_session import session_options
from scripts.lib import ROOT
from scripts.lib.realmodels import pictures, text
from scripts.lib.realmodels.speech import windows

SAMPLES, DRAWS = range(2)
"""Seeds of inputs that have nothing in common."""
_FILES = 300
_AT_ONCE = 16
"""The windows of sound that one run of some detectors takes."""


@dataclass(frozen=True)
class Case:
    """A set of shapes and the inputs to run in order; ``state`` says which output is which input of the next run."""

    shapes: Mapping[str, Sequence[int]]
    runs: Sequence[Mapping[str, Any]]
    state: Mapping[str, str] = field(default_factory=dict)


class UnknownModelError(Exception):
    """The model has no known real inputs."""


class Kind(Enum):
    """What a model does."""

    FINDS_TEXT = "finds text"
    READS = "reads text"
    TURNS = "tells which way up text is"
    FILES = "tells the kind of a file"
    HEARS = "hears speech"
    HEARS_MANY = "hears speech in several windows at once"


_LINES = {Kind.READS: ((1, 48, 320), (3, 48, 192)), Kind.TURNS: ((1, 48, 192), (4, 48, 192))}
"""Batches, heights and widths of pictures of lines."""


def kind_of(model: onnx.ModelProto) -> Kind:
    """What the model does, by its inputs and outputs. Raises UnknownModelError."""
    inputs = _inputs(model)
    if inputs == {"x"}:
        rank = len(model.graph.output[0].type.tensor_type.shape.dim)
        return {4: Kind.FINDS_TEXT, 3: Kind.READS}.get(rank, Kind.TURNS)
    if inputs == {"bytes"}:
        return Kind.FILES
    if "input" in inputs and inputs <= {"input", "state", "sr", "h", "c"}:
        return Kind.HEARS if "state" in inputs else Kind.HEARS_MANY
    raise UnknownModelError(f"no real inputs are known for a model of {', '.join(sorted(inputs))}")


def cases_of(name: str, model: onnx.ModelProto, count: int, seed: int = 0) -> list[Case]:
    """The cases for a model, by its name, inputs and outputs, with so many runs each. Raises UnknownModelError.

    Inputs of two seeds, 0 and 1, have nothing in common.
    """
    kind, inputs = kind_of(model), _inputs(model)
    if kind is Kind.FINDS_TEXT:
        sizes = ((320, 320), (160, 480))
        numbers = range(1000 * (seed + 1), 1000 * (seed + 1) + count)
        return [Case({"x": (1, 3, *s)}, [{"x": pictures.page(*s, n)} for n in numbers]) for s in sizes]
    if kind in _LINES:
        return [_lines(*size, kind is Kind.TURNS, count, seed) for size in _LINES[kind]]
    if kind is Kind.FILES:
        rows = [text.features(each, 1024, 1024) for each in text.repository_files(ROOT, _FILES)][seed::2]
        return [_files(rows[: count * batch], batch) for batch in (1, 4)]
    if kind is Kind.HEARS_MANY:
        heard, zeros = windows(16000, _AT_ONCE * count, seed), np.zeros((1, 1, 128), np.float32)
        each_run = heard.reshape(count, _AT_ONCE, -1)
        runs: list[Mapping[str, Any]] = [{"input": each, "h": zeros, "c": zeros} for each in each_run]
        return [Case({"input": each_run.shape[1:]}, runs, {"hn": "h", "cn": "c"})]
    rates = (16000, 8000) if "sr" in inputs and "16k" not in name else (16000,)
    return [_heard(rate, "sr" in inputs, count, seed) for rate in rates]


def session_of(model: onnx.ModelProto, level: Any = None) -> ort.InferenceSession:
    """ONNX Runtime for the model, with all optimisations unless a ``level`` says otherwise."""
    options = session_options()
    if level is not None:
        options.graph_optimization_level = level
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def spread(model: onnx.ModelProto, count: int, seed: int) -> tuple[Case, list[Mapping[str, Any]]]:
    """A case, and so many inputs that have little in common: of sound, windows that are half a second apart.

    ONNX Runtime carries states on from run to run. Raises UnknownModelError.
    """
    apart = 16 if kind_of(model) is Kind.HEARS else 1
    case = cases_of("", model, count * apart, seed)[0]
    session = session_of(model)
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


def _inputs(model: onnx.ModelProto) -> set[str]:
    """The names of the inputs that are no weights."""
    return {info.name for info in model.graph.input} - {tensor.name for tensor in model.graph.initializer}


def _lines(batch: int, height: int, width: int, turned: bool, count: int, seed: int) -> Case:
    """Pictures of lines of text, every second one upside down if they are ``turned``."""
    rng = np.random.default_rng([0xD0, seed])
    every = [
        pictures.line(height, width, pictures.sentence(rng), upside_down=turned and n % 2 == 1)
        for n in range(count * batch)
    ]
    runs = [{"x": np.stack(every[at : at + batch])} for at in range(0, len(every), batch)]
    return Case({"x": (batch, 3, height, width)}, runs)


def _files(rows: Sequence[Any], batch: int) -> Case:
    ends = range(batch, len(rows) + 1, batch)
    return Case({"bytes": (batch, 2048)}, [{"bytes": np.stack(rows[at - batch : at])} for at in ends])


def _heard(rate: int, with_rate: bool, count: int, seed: int) -> Case:
    heard, zeros = windows(rate, count, seed), np.zeros((2, 1, 128), np.float32)
    more = {"sr": np.array(rate)} if with_rate else {}
    runs = [{"input": each[np.newaxis], "state": zeros, **more} for each in heard]
    return Case({"input": (1, heard.shape[1]), "state": zeros.shape}, runs, {"stateN": "state"})
