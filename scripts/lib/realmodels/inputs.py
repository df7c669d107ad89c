"""Real inputs: text rendered to pictures, the bytes of files, and generated sound; so many of a seed for a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.lib import ROOT
from scripts.lib.realmodels import pictures, text
from scripts.lib.realmodels.speech import windows

SAMPLES, DRAWS = range(2)
"""Seeds of inputs that have nothing in common."""
_RATE = 16_000
_APART = 16
"""Windows of sound are half a second apart."""
_FILES = 300

Inputs = Sequence[Mapping[str, Any]]


def pages(_: Path, count: int, seed: int) -> Inputs:
    """Pages of text."""
    first = 1000 * (seed + 1)
    return [{"x": pictures.page(320, 320, number)} for number in range(first, first + count)]


def lines(_: Path, count: int, seed: int) -> Inputs:
    """Lines of text."""
    return _lines(count, seed, 320, 1)


def turned_lines(_: Path, count: int, seed: int) -> Inputs:
    """Short lines of text, every second one upside down."""
    return _lines(count, seed, 192, 2)


def _lines(count: int, seed: int, width: int, ways: int) -> Inputs:
    rng = np.random.default_rng([0xD0, seed])
    return [
        {"x": pictures.line(48, width, pictures.sentence(rng), upside_down=n % ways == 1)[None]} for n in range(count)
    ]


def files(_: Path, count: int, seed: int) -> Inputs:
    """Files of this repository, in the form that magika takes."""
    rows = [text.features(each, 1024, 1024) for each in text.repository_files(ROOT, _FILES)]
    return [{"bytes": row[None]} for row in rows[seed::2][:count]]


def sound(model: Path, count: int, seed: int) -> Inputs:
    """Windows of sound, with the states that ONNX Runtime has carried there from the beginning."""
    return [*_heard(model, count * _APART, seed)][_APART - 1 :: _APART]


def _heard(model: Path, count: int, seed: int) -> Iterator[Mapping[str, Any]]:
    import onnxruntime as ort

    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    state = np.zeros((2, 1, 128), np.float32)
    for window in windows(_RATE, count, seed):
        yield {"input": window[None], "state": state, "sr": np.array(_RATE)}
        (state,) = session.run(["stateN"], {"input": window[None], "state": state, "sr": np.array(_RATE)})
