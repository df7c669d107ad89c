"""The parts of a compiled network, and loading them: kernels, and the engine of a suffix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from collage.backends.base import Backend
from collage.backends.engine import as_engine, session_on
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.kernel.frames import Artifact, Framed
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import Target
from collage.runtime.executor import Executor, kernel_name
from collage.runtime.original import Careful
from collage.runtime.suffix import SuffixExecutor
from collage.schedule.program import Program
from collage.schedule.region import Region


@dataclass(frozen=True)
class Parts:
    """The parts of a module, which its file holds.

    ``artifacts`` are those of ``program.executed``, in order; that of a suffix is its ONNX model. ``constants`` are the
    outputs that are constants, by id. ``versions`` are the library versions of the backends that are used.
    ``original`` is the artifact of the original model. It answers calls in which a scan finds something, and all calls
    on a machine that the placement does not fit.
    """

    program: Program
    artifacts: Sequence[Artifact]
    constants: Mapping[int, Array]
    target: Target
    versions: Mapping[str, str]
    original: Artifact | None = None


class Backends(Protocol):
    """Backends by name: a registry or a mapping."""

    def __getitem__(self, name: str, /) -> Backend: ...


def load_parts(parts: Parts, backends: Backends) -> Executor | SuffixExecutor:
    """Load the kernels, and the engine of a suffix. Raises CollageError, which names what cannot be loaded."""
    executor = build_executor(parts, backends)
    return executor if parts.program.suffix is None else load_suffix(parts, executor, backends)


def load_suffix(parts: Parts, prefix: Executor, backends: Backends) -> SuffixExecutor:
    """Load the engine of the suffix, which runs after ``prefix``. Raises CollageError."""
    model, suffix = parts.artifacts[-1], parts.program.suffix
    assert suffix is not None
    region = suffix.region
    careful = Careful(model, region.threads) if region.finite_only else None
    try:
        session = session_on(as_engine(backends[region.backend]), model, _options(region))
        return SuffixExecutor(prefix, suffix, session, careful)
    except Exception as error:  # a backend raises anything
        what = "the suffix of the model" if parts.program.launches else "the whole model"
        raise CollageError(f"{region.backend} cannot load {what}: {error}") from error


def build_executor(parts: Parts, backends: Backends) -> Executor:
    """Load the kernels of the launches, and bind them. Raises CollageError as ``load_kernels`` does."""
    return executor_of(parts, [*load_kernels(parts.program, parts.artifacts, backends)])


def executor_of(parts: Parts, kernels: Sequence[Kernel]) -> Executor:
    """The executor of the launches, whose kernels are loaded. Raises CollageError where memory does not suffice."""
    guarded = parts.original is not None and parts.program.is_guarded
    careful = Careful(parts.original, parts.program.threads) if guarded and parts.original is not None else None
    try:
        return Executor(parts.program, kernels, parts.constants, careful=careful)
    except MemoryError as error:
        taken = sum(plan.nbytes for plan in parts.program.arenas.values())
        told = f": {error}" if str(error) else ""
        raise CollageError(f"its values take {taken >> 20} MiB, more memory than there is{told}") from error


Loaded: TypeAlias = "dict[tuple[int, str, bool, BuildOptions], Kernel]"
"""Kernels by the id of their artifact, backend, whether they are layout transforms, and options."""


def load_kernels(
    program: Program, artifacts: Sequence[Artifact], backends: Backends, loaded: Loaded | None = None
) -> Iterator[Kernel]:
    """The kernels of the launches, one after another. Regions with the same artifact and options share a kernel.

    ``loaded`` has the kernels that were loaded before, and the others are added to it. Raises CollageError, which names
    the region that cannot be loaded.
    """
    loaded = {} if loaded is None else loaded
    for region, artifact in zip(program.launches, artifacts, strict=False):  # a suffix has none
        options = _options(region)
        key = id(artifact), region.backend, region.is_transform, options
        try:
            if key not in loaded:
                whole = artifact if isinstance(artifact, Framed) else bytes(artifact)
                backend = backends[region.backend]
                load = backend.load_transform if region.is_transform else backend.load
                loaded[key] = load(whole, options)
        except Exception as error:  # a backend raises anything
            raise CollageError(f"the {kernel_name(region)} cannot be loaded: {error}") from error
        yield loaded[key]


def _options(region: Region) -> BuildOptions:
    return BuildOptions(
        threads=region.threads,
        exclusive=region.exclusive,
        variant=Variant(precision=region.precision),
        profile=region.profile,
    )
