"""What a compiled kernel holds, and the bytes it is kept as: a JSON description, LLVM IR text, constants.

LLVM IR is the only form TVM 0.27 loads without a linker. The process that loads it must run on the same CPU
model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from collage.runtime.buffers import ALIGNMENT, aligned_empty

__all__ = ["ALIGNMENT", "Array", "Artifact", "Call", "Slot", "TensorSpec", "empty_aligned", "pack", "unpack"]

_MAGIC = b"CLGTVM02"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """Shape (elements) and numpy dtype name of a buffer."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Slot:
    """A buffer of a kernel: which kind, and its index among that kind."""

    kind: Literal["param", "output", "intermediate", "constant"]
    index: int


@dataclass(frozen=True)
class Call:
    """One PrimFunc call: its arguments in the PrimFunc's own order; the last `writes` of them are written."""

    name: str
    args: tuple[Slot, ...]
    writes: int


@dataclass(frozen=True, eq=False)
class Artifact:
    """A compiled kernel: LLVM IR `code` for the CPU `mcpu`, and the buffers that its calls take."""

    mcpu: str
    threads: int
    calls: tuple[Call, ...]
    params: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    intermediates: tuple[TensorSpec, ...]
    constants: tuple[Array, ...]
    code: bytes


def pack(artifact: Artifact) -> bytes:
    """The bytes of an artifact."""
    header = {
        "mcpu": artifact.mcpu,
        "threads": artifact.threads,
        "code_bytes": len(artifact.code),
        "calls": [asdict(c) for c in artifact.calls],
        "params": [asdict(s) for s in artifact.params],
        "outputs": [asdict(s) for s in artifact.outputs],
        "intermediates": [asdict(s) for s in artifact.intermediates],
        "constants": [{"shape": c.shape, "dtype": str(c.dtype)} for c in artifact.constants],
    }
    text = json.dumps(header, sort_keys=True).encode()
    data = b"".join(np.ascontiguousarray(c).tobytes() for c in artifact.constants)
    return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, artifact.code, data])


def unpack(data: bytes) -> Artifact:
    """What `pack` was given, the constants on `ALIGNMENT` boundaries. Raises `ValueError` for other bytes."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("not a compiled TVM kernel, or one of another version")
    start = len(_MAGIC) + 8
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    header = json.loads(data[start:end])
    calls = tuple(Call(c["name"], tuple(Slot(**s) for s in c["args"]), c["writes"]) for c in header["calls"])
    code = data[end : end + header["code_bytes"]]
    constants, offset = [], end + header["code_bytes"]
    for spec in _specs(header["constants"]):
        array = empty_aligned(spec)
        source = np.frombuffer(data, array.dtype, array.size, offset)
        array[...] = source.reshape(spec.shape)
        constants.append(array)
        offset += array.nbytes
    return Artifact(
        header["mcpu"], header["threads"], calls, _specs(header["params"]), _specs(header["outputs"]),
        _specs(header["intermediates"]), tuple(constants), code,
    )  # fmt: skip


def _specs(found: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tuple(s["shape"]), s["dtype"]) for s in found)


def empty_aligned(spec: TensorSpec) -> Array:
    """An uninitialised C-contiguous array on an `ALIGNMENT` boundary."""
    return aligned_empty(spec.shape, np.dtype(spec.dtype))
