"""The last check: a module's outputs against what ONNX Runtime makes of the original model, without optimisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx

from collage.frontend.model import Model
from collage.frontend.op_kinds import rounds
from collage.frontend.random_inputs import random_inputs
from collage.frontend.session import reference_run
from collage.graph.dataflow import Array
from collage.measure_db.compare import difference, region_tolerance

SEED = 1
"""With that of the compile: kernels were chosen by the worker's numbers, which are other ones."""

Run: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
"""Gives a module's outputs for inputs, in order."""


@dataclass(frozen=True)
class FinalCheck:
    """What is expected for some inputs, and the relative error ``allowed`` (see ``relative_error``)."""

    inputs: Sequence[Array]
    expected: Sequence[Array]
    allowed: float
    rounded: bool

    @staticmethod
    def of(original: onnx.ModelProto, model: Model, inputs: Sequence[Array]) -> FinalCheck:
        """Run the original on ``inputs``, which are in the order of the model's."""
        expected = reference_run(original, dict(zip(model.input_names, inputs, strict=True)))
        rounded = any(rounds(node.op) for node in model.graph.nodes)
        allowed = region_tolerance((each.dtype.name for each in (*expected, *inputs)), rounded=rounded)
        return FinalCheck(inputs, expected, allowed, rounded)

    @staticmethod
    def of_seed(original: onnx.ModelProto, model: Model, seed: int) -> FinalCheck:
        """Run the original on inputs of that compile's own."""
        return FinalCheck.of(original, model, random_inputs(model, np.random.default_rng((seed, SEED))))

    def errors(self, run: Run) -> tuple[float, float]:
        """The largest absolute and the largest relative error of what ``run`` makes of the inputs."""
        return difference(list(run(self.inputs)), list(self.expected), rounded=self.rounded)

    def complaint(self, relative: float) -> str:
        """Words for an error that is too large."""
        return f"outputs differ from ONNX Runtime's by {relative:.2g} of their scale ({self.allowed:.0e} allowed)"
