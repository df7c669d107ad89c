"""Whether the placement of a module file fits this machine and its libraries, and the original model if it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from collage.backends.base import BUILT_IN, LAYOUT
from collage.backends.registry import Registry
from collage.core.typed import shown, typed
from collage.errors import CollageError
from collage.frontend.engine_models import input_names
from collage.graph.value_type import TENSOR, ValueType
from collage.kernel.frames import Artifact
from collage.kernel.target import host
from collage.module.file import target_of
from collage.native.kernel_library import leaves_out_avx512
from collage.runtime.parts import Parts
from collage.schedule.program import Port, make_program
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix, ValuePort

ENGINE = "onnxruntime"
"""The backend that runs the original model."""


@dataclass(frozen=True)
class Fit:
    """The ``problems`` for which a placement does not run here, and other ``differences`` to where it was made.

    Each is a sentence without its full stop.
    """

    problems: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join((*self.problems, *self.differences))


def fit_of(manifest: Mapping[str, Any], registry: Registry) -> Fit:
    """Ask each backend of a module whether kernels of that version run here.

    Kernels are not loaded for that, and loading them may find more. Raises ValueError, KeyError or TypeError for a
    damaged manifest.
    """
    made, here = target_of(manifest), host()
    problems: list[str] = []
    differences: list[str] = []
    if made.hardware != here.hardware:
        differences.append(f"it was compiled for {made.hardware}, and this machine is {here.hardware}")
    if leaves_out_avx512():
        differences.append("AVX-512 is not used in this process")
    tail = manifest["program"]["tail"]
    regions = [*manifest["program"]["regions"], *([] if tail is None else [tail["region"]])]
    used = {typed(str, each["backend"]) for each in regions}
    versions = typed(dict[str, str], manifest["versions"])
    for name in sorted({*used, *versions}):
        version = versions.get(name, "")
        if name not in registry:
            problems.append(f"it needs {' '.join(filter(None, (shown(name), version)))} (here: not registered)")
            continue
        if name in BUILT_IN:
            continue
        backend = registry[name]
        if why := backend.misfit(version, made.flags == here.flags):
            problems.append(f"it needs {name} {version} (here: {why})")
        elif (found := backend.available()) and found.version != version:
            differences.append(f"it was measured with {name} {version}, and {found.version} is here")
    if LAYOUT in used and LAYOUT in registry and not (transforms := registry[LAYOUT].available()):
        problems.append(f"it needs oneDNN (here: {transforms.reason})")
    return Fit(tuple(problems), tuple(differences))


def original_of(parts: Parts) -> Artifact | None:
    """The original model, if the parts hold it."""
    if parts.original is None and parts.program.suffix is not None and not parts.program.launches:
        return parts.artifacts[-1]  # files of older versions have it once if an engine runs it
    return parts.original


def on_original(parts: Parts) -> Parts:
    """The parts of a module that runs the original model on ONNX Runtime, with the same inputs and outputs.

    Raises CollageError if the file does not hold the model, or not with these inputs.
    """
    program, original = parts.program, original_of(parts)
    if original is None:
        raise CollageError("the file does not hold the original model")
    inputs, outputs = (tuple(map(_as_value, side)) for side in (program.model_inputs, program.model_outputs))
    if input_names(original) != [port.name for port in inputs]:
        raise CollageError("the original model in the file has other inputs")
    threads = parts.target.threads
    nothing: tuple[()] = ()
    region = Region(ENGINE, nothing, nothing, nothing, nothing, nothing, threads=threads, exclusive=True, original=True)
    reads, writes = (tuple(port.name for port in side) for side in (inputs, outputs))
    suffix = Suffix(region, inputs, outputs, reads, writes)
    return replace(
        parts,
        program=make_program((), (), (), {}, threads).followed_by(suffix),
        artifacts=[original],
        constants={},
    )


def _as_value(port: Port | ValuePort) -> ValuePort:
    if isinstance(port, ValuePort):
        return port
    return ValuePort(port.name, ValueType(TENSOR, port.type.dtype, port.type.shape), port.rows)
