"""What a convolution on the GPU is kept as: its description, the algorithm, and its constants."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from collage.backends.cudnn_kernels.description import Convolution
from collage.core.typed import MalformedError, typed
from collage.graph.dataflow import Array
from collage.kernel.frames import Artifact, frame, unframe

__all__ = ["CudnnArtifact", "pack", "unpack"]

_KIND = "cudnn"


@dataclass(frozen=True, eq=False)
class CudnnArtifact:
    """A convolution for the GPU of an ``architecture``; ``data`` and ``residual`` are positions of inputs."""

    architecture: str
    description: Convolution
    algorithm: int
    workspace_bytes: int
    inputs: int
    data: int
    residual: int | None
    weights: Array
    bias: Array | None


def pack(artifact: CudnnArtifact) -> bytes:
    """The bytes of an artifact."""
    names = ("architecture", "algorithm", "workspace_bytes", "inputs", "data", "residual")
    header = {name: getattr(artifact, name) for name in names}
    arrays = [artifact.weights] if artifact.bias is None else [artifact.weights, artifact.bias]
    contents = [np.ascontiguousarray(each, np.float32).tobytes() for each in arrays]
    return frame(_KIND, {**header, "description": asdict(artifact.description)}, contents)


def unpack(data: Artifact) -> CudnnArtifact:
    """What ``pack`` was given. Raises ValueError for other bytes, and for what would leave its buffers."""
    framed = unframe(_KIND, data)
    header = framed.header
    description = typed(Convolution, header["description"])
    if problem := description.problem():
        raise MalformedError(problem)
    found = CudnnArtifact(
        typed(str, header["architecture"]),
        description,
        typed(int, header["algorithm"]),
        typed(int, header["workspace_bytes"]),
        typed(int, header["inputs"]),
        typed(int, header["data"]),
        typed(int, header["residual"]) if header["residual"] is not None else None,
        framed.array(0).view(np.float32),
        framed.array(1).view(np.float32) if description.bias else None,
    )
    places = [each for each in (found.data, found.residual) if each is not None]
    if any(not 0 <= each < found.inputs for each in places):
        raise MalformedError(f"operands {places} of {found.inputs} inputs")
    if (found.residual is not None) != description.residual or not 0 <= found.workspace_bytes < 1 << 40:
        raise MalformedError("a residual is missing, or there without need, or the workspace is damaged")
    if found.weights.size != description.filter_elements:
        raise MalformedError(f"{found.weights.size} weights for a filter of {description.filter_elements}")
    if found.bias is not None and found.bias.size != description.result[1]:
        raise MalformedError(f"a bias of {found.bias.size} elements for {description.result[1]} channels")
    return found
