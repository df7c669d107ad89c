"""Reading a match as something that cuDNN computes, by the operator that it begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from collage.backends.base import UnsupportedError
from collage.backends.chains.pool import POOLS
from collage.backends.cudnn_kernels.attention import is_attention, read_attention
from collage.backends.cudnn_kernels.convolution import CONVOLUTIONS, read_convolution
from collage.backends.cudnn_kernels.lowered import CudnnTask
from collage.backends.cudnn_kernels.normalisation import (
    NORMALISATIONS,
    RMS_NORM,
    read_between_casts,
    read_normalisation,
)
from collage.backends.cudnn_kernels.pooling import read_pooling
from collage.frontend.subgraph import Subgraph

__all__ = ["ROOTS", "task_of"]

ROOTS: Mapping[str, Callable[[Subgraph], CudnnTask]] = {
    **dict.fromkeys(CONVOLUTIONS, read_convolution),
    **dict.fromkeys(POOLS, read_pooling),
    **dict.fromkeys(NORMALISATIONS, read_normalisation),
}
"""What reads the matches that begin with an operator."""


def task_of(subgraph: Subgraph) -> CudnnTask:
    """The subgraph as a task, parsed once. Raises UnsupportedError when it is none that cuDNN takes."""
    return subgraph.parsed(_read)


def _read(subgraph: Subgraph) -> CudnnTask:
    if is_attention(subgraph):
        task: CudnnTask = read_attention(subgraph)
    elif len(subgraph.operators) > 1 and any(node.op == RMS_NORM for node in subgraph.operators[1:]):
        task = read_between_casts(subgraph)
    elif (root := subgraph.operators[0].op) in ROOTS:
        task = ROOTS[root](subgraph)
    else:
        raise UnsupportedError(f"cuDNN gets no {root}")
    for format in task.formats:
        for lowered in task.lower(format, task.own):
            if problem := lowered.graph.problem():
                raise UnsupportedError(f"cuDNN takes no such graph: {problem}")
    return task
