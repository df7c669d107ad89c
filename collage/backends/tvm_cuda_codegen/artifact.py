"""What a kernel for an NVIDIA GPU holds, and the bytes it is kept as: machine code, its launches, and constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from collage.backends.tvm_codegen.artifact import Array, BufferSlot, TensorSpec
from collage.core.typed import MalformedError, shown, typed
from collage.graph.dataflow import np_dtype
from collage.graph.value_type import read_type
from collage.kernel import frames
from collage.kernel.frames import frame, unframe

__all__ = ["CudaArtifact", "Extent", "Launch", "is_grid", "pack", "unpack"]

_KIND = "tvm-cuda"
_MOST_THREADS = 1024
"""The most threads of a block."""

Extent = tuple[int, int, int]
"""Numbers of blocks in a grid, or of threads in a block, along x, y and z."""

_MOST_BLOCKS: Extent = (2**31 - 1, 65535, 65535)
"""The most blocks of a grid along each axis."""


def is_grid(grid: Extent) -> bool:
    """Whether a kernel can be launched on so many blocks."""
    return all(1 <= each <= most for each, most in zip(grid, _MOST_BLOCKS, strict=True))


@dataclass(frozen=True)
class Launch:
    """One launch of a function of machine code: on ``grid`` blocks of ``block`` threads, with these arguments.

    ``cubin`` is the number of the machine code that has the function.
    """

    cubin: int
    function: str
    grid: Extent
    block: Extent
    args: tuple[BufferSlot, ...]


@dataclass(frozen=True, eq=False)
class CudaArtifact:
    """A compiled kernel: machine code for the ``architecture``, its launches in order, and the buffers of these."""

    architecture: str
    launches: tuple[Launch, ...]
    params: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    intermediates: tuple[TensorSpec, ...]
    constants: tuple[Array, ...]
    cubins: tuple[bytes, ...]


def pack(artifact: CudaArtifact) -> bytes:
    """The bytes of an artifact."""
    header = {
        "architecture": artifact.architecture,
        "cubins": len(artifact.cubins),
        "launches": [asdict(each) for each in artifact.launches],
        "params": [asdict(each) for each in artifact.params],
        "outputs": [asdict(each) for each in artifact.outputs],
        "intermediates": [asdict(each) for each in artifact.intermediates],
        "constants": [{"shape": each.shape, "dtype": str(each.dtype)} for each in artifact.constants],
    }
    constants = [np.ascontiguousarray(each).tobytes() for each in artifact.constants]
    return frame(_KIND, header, [*artifact.cubins, *constants])


def unpack(data: frames.Artifact) -> CudaArtifact:
    """What ``pack`` was given. Raises ValueError for other bytes, and for launches that cannot be made."""
    try:
        framed = unframe(_KIND, data)
    except ValueError as error:
        raise ValueError(f"not a compiled TVM kernel for CUDA: {error}") from error
    header = framed.header
    count = typed(int, header["cubins"])
    constants = []
    for number, spec in enumerate(_specs(header["constants"])):
        content, size = framed.array(count + number), read_type(spec.shape, spec.dtype).nbytes
        if content.nbytes != size:
            raise MalformedError(f"constant {number} has {content.nbytes} bytes, not {size}")
        constants.append(content.view(np_dtype(spec.dtype)).reshape(spec.shape))
    found = CudaArtifact(
        typed(str, header["architecture"]),
        tuple(typed(list[Launch], header["launches"])),
        _specs(header["params"]),
        _specs(header["outputs"]),
        _specs(header["intermediates"]),
        tuple(constants),
        tuple(framed.array(number).tobytes() for number in range(count)),
    )
    _check(found)
    return found


def _check(found: CudaArtifact) -> None:
    counts = {
        "param": len(found.params),
        "output": len(found.outputs),
        "intermediate": len(found.intermediates),
        "constant": len(found.constants),
    }
    for launch in found.launches:
        if not 0 <= launch.cubin < len(found.cubins):
            raise MalformedError(f"{shown(launch.function)} is in machine code that there is not")
        if any(not 0 <= slot.index < counts[slot.kind] for slot in launch.args):
            raise MalformedError(f"{shown(launch.function)} takes buffers that there are not")
        x, y, z = launch.grid
        if not is_grid(launch.grid):
            raise MalformedError(f"{shown(launch.function)} has grids of {x}x{y}x{z} blocks")
        x, y, z = launch.block
        if min(x, y, z) < 1 or x * y * z > _MOST_THREADS:
            raise MalformedError(f"{shown(launch.function)} has blocks of {x}x{y}x{z} threads")


def _specs(found: Sequence[Any]) -> tuple[TensorSpec, ...]:
    specs = typed(list[TensorSpec], found)
    for spec in specs:
        read_type(spec.shape, spec.dtype)
    return tuple(specs)
