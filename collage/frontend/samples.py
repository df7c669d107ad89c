"""Inputs that the user gives to measure and check with, checked against what the model takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from collage.errors import InputError, unknown_names
from collage.frontend.shapes import model_inputs
from collage.frontend.value_types import value_type
from collage.graph.value_type import MismatchError


def check_samples(model: onnx.ModelProto, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given values by name, as engines take them. Raises UsageError and InputError naming what is wrong."""
    infos = {info.name: info for info in model_inputs(model)}
    unknown = set(given) - set(infos)
    if unknown:
        raise unknown_names("input", unknown, infos)
    found = {}
    for name, value in given.items():
        try:
            found[name] = value_type(infos[name].type).check(value)
        except MismatchError as error:
            raise InputError(f"input {name} {error}.") from None
    return found


def shapes_of(samples: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes (elements per axis) of the samples that are arrays, by name."""
    return {name: value.shape for name, value in samples.items() if isinstance(value, np.ndarray)}
