"""What a product on the GPU is kept as: its description, the algorithm, and its constants."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from collage.backends.cublas_kernels.description import Description
from collage.backends.cublas_kernels.library import ALGORITHM_BYTES, DTYPES
from collage.core.typed import MalformedError, shown, typed
from collage.graph.dataflow import Array, np_dtype
from collage.kernel.frames import Artifact, frame, unframe

__all__ = ["CublasArtifact", "ProductOperands", "pack", "unpack"]

_KIND = "cublas"


@dataclass(frozen=True)
class ProductOperands:
    """Which of a kernel's inputs the operands are, of so many inputs; None for a constant, or for no residual."""

    inputs: int
    left: int
    right: int | None
    residual: int | None


@dataclass(frozen=True, eq=False)
class CublasArtifact:
    """A product for the GPU of an ``architecture``. Constant weights are in the place of the right operand."""

    architecture: str
    description: Description
    algorithm: bytes
    workspace_bytes: int
    operands: ProductOperands
    weights: Array | None
    bias: Array | None


def pack(artifact: CublasArtifact) -> bytes:
    """The bytes of an artifact."""
    arrays = {
        name: np.ascontiguousarray(array)
        for name, array in (("weights", artifact.weights), ("bias", artifact.bias))
        if array is not None
    }
    header = {
        "architecture": artifact.architecture,
        "description": asdict(artifact.description),
        "algorithm": artifact.algorithm.hex(),
        "workspace_bytes": artifact.workspace_bytes,
        "operands": asdict(artifact.operands),
        "arrays": [*arrays],
    }
    return frame(_KIND, header, [each.tobytes() for each in arrays.values()])


def unpack(data: Artifact) -> CublasArtifact:
    """What ``pack`` was given. Raises ValueError for other bytes, and for a product that would leave its buffers."""
    framed = unframe(_KIND, data)
    header = framed.header
    description = typed(Description, header["description"])
    if description.dtype not in DTYPES:
        raise MalformedError(f"products of {shown(description.dtype)}")
    if problem := description.problem():
        raise MalformedError(problem)
    dtype = np_dtype(description.dtype)
    arrays = {name: framed.array(number).view(dtype) for number, name in enumerate(typed(list[str], header["arrays"]))}
    found = CublasArtifact(
        typed(str, header["architecture"]),
        description,
        bytes.fromhex(typed(str, header["algorithm"])),
        typed(int, header["workspace_bytes"]),
        typed(ProductOperands, header["operands"]),
        arrays.get("weights"),
        arrays.get("bias"),
    )
    _check(found)
    return found


def _check(found: CublasArtifact) -> None:
    operands, description = found.operands, found.description
    places = [each for each in (operands.left, operands.right, operands.residual) if each is not None]
    if any(not 0 <= each < operands.inputs for each in places):
        raise MalformedError(f"operands {places} of {operands.inputs} inputs")
    if (operands.residual is None) == description.residual or (found.bias is None) == description.bias:
        raise MalformedError("a residual or a bias is missing, or there without need")
    if (found.weights is None) == (operands.right is None):
        raise MalformedError("a right operand that is missing, or there twice")
    if found.weights is not None and found.weights.size < description.needs()[0]:
        raise MalformedError(f"{found.weights.size} weights for a product that reads {description.needs()[0]}")
    if found.bias is not None and found.bias.size != description.d.rows:
        raise MalformedError(f"a bias of {found.bias.size} elements for {description.d.rows} columns")
    if len(found.algorithm) != ALGORITHM_BYTES or not 0 <= found.workspace_bytes < 1 << 32:
        raise MalformedError("the algorithm is damaged")
