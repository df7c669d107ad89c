"""What a compiled kernel holds, and the bytes it is kept as: a description, constants, and code.

The code is an image, or LLVM IR if no image could be made. LLVM IR is the only form that TVM 0.27 loads without a
linker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from collage.backends.tvm_codegen.mapped import PAGE, Image
from collage.core.typed import MalformedError, shown, typed
from collage.graph.dataflow import np_dtype
from collage.graph.value_type import read_type
from collage.kernel import frames
from collage.kernel.buffers import aligned_empty
from collage.kernel.frames import frame, unframe

_KIND = "tvm"
_MOST_BYTES = 1 << 28
"""More code than that is none of ours."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """Shape (elements) and numpy dtype name of a buffer."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class BufferSlot:
    """A buffer of a kernel: which kind, and its index among that kind."""

    kind: Literal["param", "output", "intermediate", "constant"]
    index: int


@dataclass(frozen=True)
class TvmCall:
    """One PrimFunc call: its arguments in the PrimFunc's own order; the last `writes` of them are written."""

    name: str
    args: tuple[BufferSlot, ...]
    writes: int


@dataclass(frozen=True, eq=False)
class TvmArtifact:
    """A compiled kernel: its code and the buffers that its calls take.

    LLVM IR is for CPUs that LLVM names `mcpu`, and an image for those that have all the instruction sets of `needs`.
    """

    mcpu: str
    threads: int
    calls: tuple[TvmCall, ...]
    params: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    intermediates: tuple[TensorSpec, ...]
    constants: tuple[Array, ...]
    code: Image | bytes
    needs: tuple[str, ...] = ()


def pack(artifact: TvmArtifact) -> bytes:
    """The bytes of an artifact."""
    header = {
        "mcpu": artifact.mcpu,
        "threads": artifact.threads,
        "calls": [asdict(c) for c in artifact.calls],
        "params": [asdict(s) for s in artifact.params],
        "outputs": [asdict(s) for s in artifact.outputs],
        "intermediates": [asdict(s) for s in artifact.intermediates],
        "constants": [{"shape": c.shape, "dtype": str(c.dtype)} for c in artifact.constants],
    }
    arrays = [np.ascontiguousarray(c).tobytes() for c in artifact.constants]
    if isinstance(artifact.code, bytes):
        return frame(_KIND, header | {"code": artifact.code.decode()}, arrays)
    code = artifact.code
    image = {
        "writable": code.writable,
        "size": code.size,
        "functions": code.functions,
        "imports": code.imports,
        "moved": code.moved,
        "digest": code.digest,
    }
    return frame(_KIND, header | {"needs": artifact.needs, "image": image}, [*arrays, code.content])


def unpack(data: frames.Artifact) -> TvmArtifact:
    """What `pack` was given, the constants on `ALIGNMENT` boundaries: copies, or mapped and read-only.

    Raises `ValueError` for other bytes.
    """
    try:
        framed = unframe(_KIND, data)
    except ValueError as error:
        raise ValueError(f"not a compiled TVM kernel: {error}") from error
    header = framed.header
    calls = tuple(typed(list[TvmCall], header["calls"]))
    constants = []
    for i, spec in enumerate(_specs(header["constants"])):
        content, size = framed.array(i), read_type(spec.shape, spec.dtype).nbytes
        if content.nbytes != size:
            raise MalformedError(f"constant {i} has {content.nbytes} bytes, not {size}")
        constants.append(content.view(np_dtype(spec.dtype)).reshape(spec.shape))
    described = header.get("image")
    found = TvmArtifact(
        typed(str, header["mcpu"]), typed(int, header["threads"]), calls, _specs(header["params"]),
        _specs(header["outputs"]), _specs(header["intermediates"]), tuple(constants),
        typed(str, header["code"]).encode() if described is None else _image(described, framed.array(len(constants))),
        tuple(typed(list[str], header.get("needs", []))),
    )  # fmt: skip
    counts = {
        "param": len(found.params),
        "output": len(found.outputs),
        "intermediate": len(found.intermediates),
        "constant": len(found.constants),
    }
    for call in calls:
        if isinstance(found.code, Image) and call.name not in found.code.functions:
            raise MalformedError(f"there is no function {shown(call.name)}")
        if any(not 0 <= slot.index < counts[slot.kind] for slot in call.args):
            raise MalformedError(f"{shown(call.name)} takes buffers that there are not")
        if not 0 <= call.writes <= len(call.args) or any(
            slot.kind in ("param", "constant") for slot in call.args[len(call.args) - call.writes :]
        ):
            raise MalformedError(f"{shown(call.name)} writes to what is read")
    return found


def _image(described: Any, content: npt.NDArray[np.uint8]) -> Image:
    """The image of that description. Raises MalformedError if it is not what was compiled."""
    about = described if isinstance(described, dict) else {}
    image = Image(
        content.tobytes(), typed(int, about.get("writable")), typed(int, about.get("size")),
        typed(dict[str, int], about.get("functions")), typed(tuple[tuple[str, int], ...], about.get("imports")),
        typed(tuple[int, ...], about.get("moved")),
    )  # fmt: skip
    words = [*(at for _, at in image.imports), *image.moved]
    wrong = (
        not len(image.content) <= image.size <= _MOST_BYTES
        or not 0 < image.writable <= image.size
        or image.writable % PAGE
        or any(not 0 <= at <= image.size - 8 for at in words)
        or any(not 0 <= at < image.writable for at in image.functions.values())
    )
    if wrong or typed(str, about.get("digest")) != image.digest:
        raise MalformedError("its code is not what was compiled")
    return image


def _specs(found: Sequence[Any]) -> tuple[TensorSpec, ...]:
    specs = typed(list[TensorSpec], found)
    for spec in specs:
        read_type(spec.shape, spec.dtype)
    return tuple(specs)


def empty_aligned(spec: TensorSpec) -> Array:
    """An uninitialised C-contiguous array on an `ALIGNMENT` boundary."""
    return aligned_empty(spec.shape, np.dtype(spec.dtype))
