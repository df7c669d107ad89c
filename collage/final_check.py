"""The last check: a module's outputs against what ONNX Runtime makes of the original model, without optimisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from collage.errors import ModelError
from collage.frontend.model import Model
from collage.frontend.op_kinds import rounds
from collage.frontend.session import reference_run
from collage.graph.dataflow import Array
from collage.measure_db.compare import difference, region_tolerance


@dataclass(frozen=True)
class FinalCheck:
    """What is expected for some inputs, and the relative error ``allowed`` (see ``relative_error``)."""

    expected: Sequence[Array]
    allowed: float
    rounded: bool

    @staticmethod
    def of(original: onnx.ModelProto, model: Model, inputs: Sequence[Array]) -> FinalCheck:
        """Run the original on ``inputs``, which are in the order of the model's.

        Raises ModelError where ONNX Runtime does not run it.
        """
        try:
            expected = reference_run(original, dict(zip(model.input_names, inputs, strict=True)))
        except Exception as error:  # ORT's exceptions share no base class but Exception
            text = " ".join(str(error).split())[:300]
            raise ModelError(f"ONNX Runtime cannot run the model: {text}") from error
        rounded = any(rounds(node.op) for node in model.graph.nodes)
        allowed = region_tolerance((each.dtype.name for each in (*expected, *inputs)), rounded=rounded)
        return FinalCheck(expected, allowed, rounded)

    def errors(self, outputs: Sequence[Array]) -> tuple[float, float]:
        """The largest absolute and the largest relative error."""
        return difference(list(outputs), list(self.expected), rounded=self.rounded)

    def complaint(self, relative: float) -> str:
        """Words for an error that is too large."""
        return f"outputs differ from ONNX Runtime's by {relative:.2g} of their scale ({self.allowed:.0e} allowed)"
