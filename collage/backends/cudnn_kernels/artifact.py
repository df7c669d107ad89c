"""What a kernel of cuDNN is kept as: its graph, the execution plan, and its constants as they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from collage.backends.cudnn_kernels.graph import CONSTANT, INPUT, CudnnGraph, Tensor
from collage.backends.cudnn_kernels.lowered import Lowered
from collage.core.typed import MalformedError, typed
from collage.graph.dataflow import Array, np_dtype
from collage.kernel.frames import Artifact, frame, unframe

__all__ = ["CudnnArtifact", "pack", "unpack"]

_KIND = "cudnn graph"


@dataclass(frozen=True, eq=False)
class CudnnArtifact:
    """A graph with a plan for the GPU of an ``architecture``, of so many ``inputs``."""

    architecture: str
    graph: CudnnGraph
    plan: bytes
    workspace_bytes: int
    inputs: int
    constants: tuple[Array, ...]


def pack(architecture: str, lowered: Lowered, plan: tuple[bytes, int], inputs: int) -> bytes:
    """The bytes of an artifact. ``plan`` is the plan with the bytes of its workspace."""
    head = {
        "architecture": architecture,
        "graph": asdict(lowered.graph),
        "workspace_bytes": plan[1],
        "inputs": inputs,
    }
    return frame(_KIND, head, [plan[0], *(each.tobytes() for each in lowered.constants)])


def unpack(data: Artifact) -> CudnnArtifact:
    """What ``pack`` was given. Raises ValueError for other bytes, and for what would leave its buffers."""
    framed = unframe(_KIND, data)
    header = framed.header
    graph = typed(CudnnGraph, header["graph"])
    if problem := graph.problem():
        raise MalformedError(problem)
    inputs, room = typed(int, header["inputs"]), typed(int, header["workspace_bytes"])
    if any(each.place >= inputs for _, each in graph.of(INPUT)) or not 0 <= room < 1 << 40:
        raise MalformedError(f"operands of {inputs} inputs, and a workspace of {room} bytes")
    wanted = [each for _, each in graph.of(CONSTANT)]
    if [each.place for each in wanted] != [*range(len(wanted))] or len(framed.arrays) != 1 + len(wanted):
        raise MalformedError(f"{len(framed.arrays) - 1} constants of {len(wanted)}")
    return CudnnArtifact(
        typed(str, header["architecture"]),
        graph,
        framed.array(0).tobytes(),
        room,
        inputs,
        _constants(wanted, [framed.array(1 + place) for place in range(len(wanted))]),
    )


def _constants(wanted: Sequence[Tensor], arrays: Sequence[Array]) -> tuple[Array, ...]:
    found = []
    for tensor, array in zip(wanted, arrays, strict=True):
        if array.nbytes != tensor.elements * np_dtype(tensor.dtype).itemsize:
            raise MalformedError(f"{array.nbytes} bytes for {tensor.dtype} of {tensor.shape}")
        found.append(array.view(np_dtype(tensor.dtype)))
    return tuple(found)
