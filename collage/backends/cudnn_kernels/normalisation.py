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
from collage.backends.cudnn_kernels.lowered import CudnnTask, Lowered, Lowering
from collage.backends.cudnn_kernels.neighbours import only_producer, only_user
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph, Node
from collage.graph.formats import StorageFormat
from collage.graph.storage import BF16, FP16

__all__ = [
    "NORMALISATIONS",
    "RMS_NORM",
    "NormalisationTask",
    "between_casts",
    "read_between_casts",
    "read_normalisation",
]

RMS_NORM = "nn.rms_norm"
NORMALISATIONS = {"nn.layer_norm": "LAYER_NORM", RMS_NORM: "RMS_NORM"}
_CAST = "astype"


@dataclass(frozen=True)
class NormalisationTask(CudnnTask):
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
    if chain.epilogue or len(chain.operators) > 1 or chain.graph.is_constant(chain.root.inputs[0]):
        raise UnsupportedError(f"nothing is fused to {chain.root.op}, and its data is no constant")
    return _task(chain.graph, chain.root, chain.dtype)


def between_casts(graph: Graph, root: Node) -> tuple[int, ...]:
    """The nodes of an RMS normalisation in float32 between casts from float16 and back; () where it is none.

    This is how TVM imports that of a model in float16. cuDNN computes it so by itself.
    """
    if root.op != RMS_NORM:
        return ()
    before, after = only_producer(graph, root.inputs[0]), only_user(graph, root.outputs[0])
    if before is None or after is None or {before.op, after.op} != {_CAST}:
        return ()
    ends = {graph.type_of(each).dtype for each in (before.inputs[0], after.outputs[0])}
    if ends != {"float16"} or graph.is_constant(before.inputs[0]):
        return ()
    return tuple(sorted((before.id, root.id, after.id)))


def read_between_casts(subgraph: Subgraph) -> NormalisationTask:
    """The subgraph as ``between_casts`` finds it. Raises UnsupportedError when it is none that cuDNN takes."""
    graph = subgraph.model.graph
    root = next((node for node in subgraph.operators if node.op == RMS_NORM), None)
    if root is None or {*between_casts(graph, root)} != {*subgraph.nodes}:
        raise UnsupportedError("no normalisation between casts")
    return _task(graph, root, "float16")


def _task(graph: Graph, root: Node, dtype: str) -> NormalisationTask:
    function, shape = NORMALISATIONS[root.op], graph.type_of(root.outputs[0]).shape
    known = [graph.constants.get(value) for value in root.inputs[1:]]
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
    epsilon, own = number(root, "epsilon"), precision_of(dtype)
    return NormalisationTask(function, rows, columns, epsilon, scale, bias[0] if bias else None, own=own)
