"""Poolings, and means and maxima over all spatial axes, as graphs for cuDNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import read_float_chain
from collage.backends.chains.functions import DnnlAlgorithm
from collage.backends.chains.pool import Pool, read_pool
from collage.backends.cuda_kernels.precisions import precision_of
from collage.backends.cudnn_kernels.axes import end_padding, lifted
from collage.backends.cudnn_kernels.graph import WINDOWS, Windows
from collage.backends.cudnn_kernels.lowered import CudnnTask, Lowered, Lowering
from collage.frontend.subgraph import Subgraph
from collage.graph.formats import StorageFormat
from collage.graph.storage import BF16, CHANNELS_LAST, FP16, PLAIN

__all__ = ["PoolingTask", "read_pooling"]

_FUNCTIONS = {
    DnnlAlgorithm.MAX_POOL: "MAXPOOL",
    DnnlAlgorithm.AVERAGE_POOL: "AVGPOOL_EXCLUDE_PADDING",
    DnnlAlgorithm.AVERAGE_POOL_WITH_PADDING: "AVGPOOL_INCLUDE_PADDING",
}


@dataclass(frozen=True)
class PoolingTask(CudnnTask):
    """A pooling, and nothing else."""

    formats: ClassVar = (PLAIN.format, CHANNELS_LAST.format)
    precisions: ClassVar = (FP16, BF16)

    pool: Pool

    def output_format(self, format: StorageFormat) -> StorageFormat:
        """Plain where one element of each channel is left: the bytes are the same, and there may be no other axes."""
        return PLAIN.format if self.pool.to_points else format

    def lower(self, format: StorageFormat, precision: str) -> Sequence[Lowered]:
        """One graph of one operation."""
        pool, lowering = self.pool, Lowering(format, precision)
        source = lowering.input(lifted(pool.src), 0)
        output = lowering.output(lifted(pool.dst))
        end = [end_padding(pool.strides[at], pool.pad_begin[at], pool.pad_end[at]) for at in range(len(pool.kernel))]
        one = (1,) if len(pool.kernel) == 1 else ()
        none = tuple(0 for _ in one)
        about = Windows(
            (*none, *pool.pad_begin),
            (*none, *end),
            (*one, *pool.strides),
            (*one, *pool.dilation),
            (*one, *pool.kernel),
        )
        lowering.maker.slide(WINDOWS, (source,), output, about, _FUNCTIONS[pool.algorithm])
        return (lowering.done(),)


def read_pooling(subgraph: Subgraph) -> PoolingTask:
    """The subgraph as a pooling. Raises UnsupportedError when it is none that cuDNN takes."""
    chain = subgraph.parsed(read_float_chain)
    if chain.epilogue or len(chain.operators) > 1 or chain.graph.is_constant(chain.root.inputs[0]):
        raise UnsupportedError(f"nothing is fused to {chain.root.op}, and its data is no constant")
    pool = read_pool(chain.graph, chain.root)
    if set(pool.dilation) != {1}:
        raise UnsupportedError("cuDNN has no windows with gaps")
    return PoolingTask(pool, own=precision_of(chain.dtype))
