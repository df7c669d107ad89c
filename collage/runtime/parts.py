"""What a compiled network is made of, and loading it: kernels, and the engine of a tail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from collage.backends.base import Backend
from collage.backends.engine import as_engine
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.kernel.frames import Artifact, Buffer, Framed
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions
from collage.kernel.target import Target
from collage.runtime.careful import Careful
from collage.runtime.executor import Executor
from collage.runtime.tail import TailExecutor
from collage.schedule.program import Program


@dataclass(frozen=True)
class Parts:
    """All that a module is made of, and all that its file holds.

    ``artifacts`` are those of ``program.executed``, in order (a tail's is its ONNX model); ``constants`` the outputs
    that are constants; ``versions`` the library versions of the backends that are used. ``careful`` is the serialised
    ONNX model that answers calls in which a scan finds something, where there are scans: the original, its shapes open.
    """

    program: Program
    artifacts: Sequence[Artifact]
    constants: Mapping[int, Array]
    target: Target
    versions: Mapping[str, str]
    careful: Buffer | None = None


class Backends(Protocol):
    """Backends by name: a registry or a mapping."""

    def __getitem__(self, name: str, /) -> Backend: ...


def load_parts(parts: Parts, backends: Backends) -> Executor | TailExecutor:
    """What runs the parts: kernels, and the engine of a tail. Raises CollageError like build_executor."""
    executor = build_executor(parts, backends)
    return executor if parts.program.tail is None else load_tail(parts, executor, backends)


def load_tail(parts: Parts, head: Executor, backends: Backends) -> TailExecutor:
    """``head``, which runs the launches, with the engine of the tail after it. Raises CollageError."""
    model, tail = parts.artifacts[-1], parts.program.tail
    assert tail is not None and not isinstance(model, Framed)  # an ONNX model is no kernel of ours
    options = BuildOptions(threads=tail.region.threads, exclusive=tail.region.exclusive)
    careful = Careful(model, tail.region.threads) if tail.region.finite_only else None
    try:
        session = as_engine(backends[tail.region.backend]).session(bytes(model), options)
        return TailExecutor(head, tail, session, careful)
    except Exception as error:
        what = "the tail of the model" if parts.program.launches else "the whole model"
        raise CollageError(f"{tail.region.backend} cannot load {what}: {error}") from error


def build_executor(parts: Parts, backends: Backends) -> Executor:
    """Load the kernels of the launches and bind them. Raises CollageError like load_kernels."""
    return executor_of(parts, [*load_kernels(parts.program, parts.artifacts, backends)])


def executor_of(parts: Parts, kernels: Sequence[Kernel]) -> Executor:
    """What runs the launches of the parts, whose kernels are loaded."""
    careful = None if parts.careful is None else Careful(parts.careful, parts.program.threads)
    try:
        return Executor(parts.program, kernels, parts.constants, careful=careful)
    except MemoryError as error:
        raise CollageError(
            f"its values take {parts.program.memory.nbytes >> 20} MiB, more memory than there is"
        ) from error


Loaded: TypeAlias = "dict[tuple[int, str, bool, BuildOptions], Kernel]"
"""Kernels by the id of their artifact, backend, whether they are layout transforms, and options."""


def load_kernels(
    program: Program, artifacts: Sequence[Artifact], backends: Backends, loaded: Loaded | None = None
) -> Iterator[Kernel]:
    """The kernels of the launches, one after another; regions with one artifact share a kernel.

    ``loaded`` has those that were loaded before, and takes the others. Raises CollageError naming the region that
    cannot be loaded.
    """
    loaded = {} if loaded is None else loaded
    for region, artifact in zip(program.launches, artifacts, strict=False):  # a tail has none
        options = BuildOptions(threads=region.threads, exclusive=region.exclusive, profile=region.profile)
        key = id(artifact), region.backend, region.is_transform, options
        try:
            if key not in loaded:
                whole = artifact if isinstance(artifact, Framed) else bytes(artifact)
                backend = backends[region.backend]
                load = backend.load_transform if region.is_transform else backend.load
                loaded[key] = load(whole, options)
        except Exception as error:
            raise CollageError(
                f"the {region.backend} kernel {'+'.join(region.ops[:6])} cannot be loaded: {error}"
            ) from error
        yield loaded[key]
