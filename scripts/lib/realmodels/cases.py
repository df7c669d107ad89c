"""Shapes to compile a model for, and real inputs; models are recognised by the names that the packages use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import onnx

from scripts.lib import ROOT
from scripts.lib.realmodels import pictures, sound, text

TOP_1 = None
_FILES = 60


@dataclass(frozen=True)
class Case:
    """A set of shapes and the inputs to run in order; ``state`` says which output is which input of the next run.

    ``decides`` tells for an output what is decided by it: TOP_1 of its last axis, or whether it is above a number.
    """

    shapes: Mapping[str, Sequence[int]]
    runs: Sequence[Mapping[str, Any]]
    state: Mapping[str, str] = field(default_factory=dict)
    decides: Mapping[str, float | None] = field(default_factory=dict)


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


def kind_of(model: onnx.ModelProto) -> Kind:
    """What the model does, by its inputs and outputs. Raises UnknownModelError."""
    inputs = inputs_of(model)
    if inputs == {"x"}:
        rank = len(model.graph.output[0].type.tensor_type.shape.dim)
        return {4: Kind.FINDS_TEXT, 3: Kind.READS}.get(rank, Kind.TURNS)
    if inputs == {"bytes"}:
        return Kind.FILES
    if "input" in inputs and inputs <= {"input", "state", "sr", "h", "c"}:
        return Kind.HEARS if "state" in inputs else Kind.HEARS_MANY
    raise UnknownModelError(f"no real inputs are known for a model of {', '.join(sorted(inputs))}")


def inputs_of(model: onnx.ModelProto) -> set[str]:
    """The names of the inputs that are no weights."""
    return {info.name for info in model.graph.input} - {tensor.name for tensor in model.graph.initializer}


def cases_of(name: str, model: onnx.ModelProto) -> list[Case]:
    """The cases for a model, by its name, inputs and outputs. Raises UnknownModelError."""
    kind, output = kind_of(model), model.graph.output[0].name
    if kind is Kind.FILES:
        return _magika(output)
    if kind in (Kind.HEARS, Kind.HEARS_MANY):
        return _voice(name, inputs_of(model), output)
    return _ocr(output, kind)


def _ocr(output: str, kind: Kind) -> list[Case]:
    if kind is Kind.FINDS_TEXT:  # a map of probabilities
        sizes = ((320, 320), (160, 480))
        return [
            Case({"x": (1, 3, *s)}, [{"x": pictures.page(*s, seed)} for seed in range(3)], {}, {output: 0.3})
            for s in sizes
        ]
    if kind is Kind.READS:
        batches = ((1, 48, 320), (3, 48, 192))
    else:
        batches = ((1, 48, 192), (4, 48, 192))
    return [_lines(output, *batch, upside_down=kind is Kind.TURNS) for batch in batches]


def _lines(output: str, batch: int, height: int, width: int, *, upside_down: bool) -> Case:
    every = pictures.lines(6, height, width, upside_down=upside_down)
    runs = [{"x": np.roll(every, -at, 0)[:batch]} for at in range(0, 6, batch)]
    return Case({"x": (batch, 3, height, width)}, runs, {}, {output: TOP_1})


def _magika(output: str) -> list[Case]:
    rows = [text.features(content, 1024, 1024) for content in text.repository_files(ROOT, _FILES)]
    found = []
    for batch in (1, 4):
        runs = [{"bytes": np.stack(rows[at : at + batch])} for at in range(0, len(rows) - batch + 1, batch)]
        found.append(Case({"bytes": (batch, 2048)}, runs, {}, {output: TOP_1}))
    return found


def _voice(name: str, inputs: set[str], output: str) -> list[Case]:
    rates = (16000, 8000) if "sr" in inputs and "16k" not in name else (16000,)
    if "state" not in inputs:
        heard = sound.windows(16000)
        zeros = np.zeros((1, 1, 128), np.float32)
        count = 16
        runs = [
            {"input": heard[at : at + count], "h": zeros, "c": zeros}
            for at in range(0, len(heard) - count + 1, count)
        ]
        return [Case({"input": (count, 576)}, runs, {"hn": "h", "cn": "c"}, {output: 0.5})]
    found = []
    for rate in rates:
        heard = sound.windows(rate)
        more = {"sr": np.array(rate)} if "sr" in inputs else {}
        zeros = np.zeros((2, 1, 128), np.float32)
        runs = [{"input": each[np.newaxis], "state": zeros, **more} for each in heard]
        shapes = {"input": (1, heard.shape[1]), "state": (2, 1, 128)}
        found.append(Case(shapes, runs, {"stateN": "state"}, {output: 0.5}))
    return found
