"""Layer normalisation and RMS normalisation over the last axis, as graphs for cuDNN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.attributes import integers, number
from collage.backends.chains.chain import Floats, read_float_chain
from collage.backends.cuda_kernels.precisions import precision_of
from collage.backends.cudnn_kernels.graph import NORMALISATION
from collage.backends.cudnn_kernels.lowered import Lowered, Lowering, Task
from collage.frontend.subgraph import Subgraph
from collage.graph.formats import StorageFormat
from collage.graph.storage import BF16, FP16

__all__ = ["NORMALISATIONS", "NormalisationTask", "read_normalisation"]

NORMALISATIONS = {"nn.layer_norm": "LAYER_NORM", "nn.rms_norm": "RMS_NORM"}


@dataclass(frozen=True)
class NormalisationTask(Task):
    """Rows of so many columns, which are normalised, scaled and, in layer normalisation, shifted by a ``bias``."""

    precisions: ClassVar = (FP16, BF16)

    function: str
    rows: int
    columns: int
    epsilon: float
    scale: Floats = field(compare=False)
    bias: Floats | None = field(compare=False)

    def lower(self, format: StorageFormat, precision: str) -> Sequence[Lowered]:
        """One graph of one operation, in which columns are channels. Its constants are float32 in any precision."""
        lowering = Lowering(format, precision)
        shape = (self.rows, self.columns, 1, 1)
        source = lowering.input(shape, 0)
        constants = [
            lowering.constant(each.reshape(1, -1, 1, 1), wide=True)
            for each in (self.scale, self.bias)
            if each is not None
        ]
        epsilon = lowering.maker.scalar(self.epsilon, 4)
        operands = (source, *constants, epsilon)
        lowering.maker.run(NORMALISATION, operands, lowering.output(shape), self.function)
        return (lowering.done(),)


def read_normalisation(subgraph: Subgraph) -> NormalisationTask:
    """The subgraph as a normalisation. Raises UnsupportedError when it is none that cuDNN takes."""
    chain = subgraph.parsed(read_float_chain)
    root, shape = chain.root, chain.shape
    function = NORMALISATIONS[root.op]
    known = [chain.constant(value) for value in root.inputs[1:]]
    if chain.epilogue or len(chain.operators) > 1 or chain.graph.is_constant(root.inputs[0]):
        raise UnsupportedError(f"nothing is fused to {root.op}, and its data is no constant")
    if [axis % len(shape) for axis in integers(root.attrs["axes"])] != [len(shape) - 1]:
        raise UnsupportedError("it normalises over other axes than the last")
    layer = function == "LAYER_NORM"
    if any(each is None for each in known) or len(known) != 1 + layer:
        raise UnsupportedError("its factors and terms are not constant")
    if layer and not (root.attrs.get("center") and root.attrs.get("scale")):
        raise UnsupportedError("it does without its factors or terms")
    scale, *bias = (np.asarray(each, np.float32).reshape(-1) for each in known)
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if any(each.size != columns for each in (scale, *bias)):
        raise UnsupportedError("its factors have another size than the last axis")
    epsilon, own = number(root, "epsilon"), precision_of(chain.dtype)
    return NormalisationTask(function, rows, columns, epsilon, scale, bias[0] if bias else None, own=own)
