"""The module file: an archive with a manifest, the kernels' artifacts, and nothing else."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage._version import __version__
from collage.backends.base import BUILT_IN
from collage.backends.registry import Registry
from collage.errors import ModuleFileError
from collage.graph.dataflow import np_dtype
from collage.new_file import new_file
from collage.report import Report
from collage.runtime.archive import MappedArchive, NewArchive
from collage.runtime.buffers import as_bytes
from collage.runtime.fallback import Fallback
from collage.runtime.frames import Artifact, Framed, parts_of
from collage.runtime.inputs import extents
from collage.runtime.module import CompiledModule, Parts, load_parts
from collage.runtime.shaped import ShapedModule
from collage.schedule.program import Program
from collage.target import Target, cores, host

log = logging.getLogger(__name__)

FORMAT = 4


def save_module(path: Path, module: CompiledModule) -> None:
    """Write the file beside its place and move it there, so that no half-written file is ever seen."""
    _save(path, [module], shaped=False, fallback=None)


def save_shaped(path: Path, module: ShapedModule) -> None:
    """The same for a module of several sets of shapes; what their kernels have in common is stored once."""
    _save(path, module.modules, shaped=True, fallback=module.fallback)


def _save(path: Path, modules: Sequence[CompiledModule], *, shaped: bool, fallback: Fallback | None) -> None:
    with new_file(path) as stream, NewArchive(stream) as archive:
        manifest = {
            "format": FORMAT,
            "collage": __version__,
            "shaped": shaped,
            "modules": [_put_module(archive, each.parts, each.report) for each in modules],
            "fallback": None if fallback is None else archive.put("models", fallback.model),
        }
        archive.finish(manifest)


def _put_module(archive: NewArchive, parts: Parts, report: Report) -> dict[str, Any]:
    """What the manifest says of a module; bytes that are there already are stored once."""
    return {
        "target": {
            "device": parts.target.device,
            "flags": parts.target.flags,
            "threads": parts.target.threads,
        },
        "versions": {n: v for n, v in parts.versions.items() if n not in BUILT_IN},
        "program": parts.program.to_json(),
        "artifacts": [_put_artifact(archive, each) for each in parts.artifacts],
        "constants": {
            str(value): archive.put("arrays", as_bytes(np.ascontiguousarray(array)).data)
            for value, array in parts.constants.items()
        },
        "careful": None if parts.careful is None else archive.put("models", parts.careful),
        "report": report.to_json(),
    }


def _put_artifact(archive: NewArchive, artifact: Artifact) -> dict[str, Any]:
    """What the manifest says of an artifact: the name of its bytes, or those of its head and its arrays."""
    try:
        framed = artifact if isinstance(artifact, Framed) else parts_of(artifact)
    except ValueError:
        assert not isinstance(artifact, Framed)
        return {"bytes": archive.put("artifacts", artifact)}
    arrays = [archive.put("arrays", each) for each in framed.arrays]
    return {"head": archive.put("artifacts", framed.head), "arrays": arrays}


def load_file(
    path: Path, registry: Registry, *, share: bool = True, verify: bool = False, strict: bool = False
) -> CompiledModule | ShapedModule:
    """The module of a file, checked against this machine and the installed libraries.

    Kernels read their weights where the file is mapped, or with ``share`` off in memory of this process; with
    ``verify`` they are compared with their checksums first.
    With ``strict`` a module of several sets of shapes has no fallback for others. Raises ModuleFileError naming the
    reason and the way out.
    """
    archive = _open(path, share=share)
    manifest = archive.manifest
    versions = {name: found.version for name, found in registry.availability().items() if found}
    try:
        for each in manifest["modules"]:
            _refuse_other_machine(path, each, versions)
        found = [_get_module(archive, each, verify) for each in manifest["modules"]]
        model = None if manifest["fallback"] is None else archive.get(manifest["fallback"], check=verify)
        shaped = manifest["shaped"] or len(found) != 1
    except (KeyError, ValueError, TypeError, IndexError, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error)) from None
    threads = max((parts.target.threads for parts, _ in found), default=1)
    allowed = cores()
    if threads > allowed.usable:
        log.warning(
            "%s was compiled for %d threads, and this process may use %s: it gives the same results, more "
            "slowly than a module compiled with --threads %d would",
            *(path, threads, allowed, allowed.usable),
        )
    modules = [CompiledModule(parts, report, load_parts(parts, registry)) for parts, report in found]
    if not shaped:
        return modules[0]
    program = modules[0].program
    return ShapedModule(
        modules,
        None if model is None or strict else Fallback(model, program.takes, program.gives, threads),
    )


def _get_module(archive: MappedArchive, manifest: Mapping[str, Any], verify: bool) -> tuple[Parts, Report]:
    program = Program.from_json(manifest["program"])
    found: dict[str, Artifact] = {}
    artifacts = []
    for names in manifest["artifacts"]:
        key = json.dumps(names)  # equal artifacts become one, and so one kernel
        if key not in found:
            found[key] = _get_artifact(archive, names, verify)
        artifacts.append(found[key])
    constants = {}
    for value, name in manifest["constants"].items():
        kind = program.types[int(value)]
        raw = np.frombuffer(archive.get(name, check=True), np_dtype(kind.dtype))
        constants[int(value)] = raw.reshape(kind.shape)
    target = Target(**manifest["target"])
    careful = None if manifest["careful"] is None else archive.get(manifest["careful"], check=verify)
    parts = Parts(program, artifacts, constants, target, manifest["versions"], careful)
    return parts, Report.from_json(manifest["report"])


def _get_artifact(archive: MappedArchive, names: Mapping[str, Any], verify: bool) -> Artifact:
    if "bytes" in names:
        return archive.get(names["bytes"], check=True)
    arrays = tuple(archive.get(name, check=verify) for name in names["arrays"])
    return Framed(archive.get(names["head"], check=True), arrays, mapped=True)


@dataclass(frozen=True)
class Summary:
    """What a file tells without loading a kernel: report and program of each module in it.

    ``shaped`` files have a module for each set of shapes, and perhaps a ``fallback`` for others. ``model_bytes`` is
    the size of the original model that answers where fast kernels would be wrong, 0 where nobody needs it.
    """

    modules: tuple[tuple[Report, Program], ...]
    shaped: bool
    fallback: bool
    model_bytes: int = 0

    @property
    def first(self) -> tuple[Report, Program]:
        """Those of the first, or only, module."""
        return self.modules[0]


def read_summary(path: Path) -> Summary:
    """What ``collage show`` needs. Raises ModuleFileError."""
    archive = _open(path)
    manifest = archive.manifest
    try:
        modules = tuple(
            (Report.from_json(each["report"]), Program.from_json(each["program"]))
            for each in manifest["modules"]
        )
        if not modules:
            raise ValueError("it holds no module")
        models = {each["careful"] for each in manifest["modules"]} - {None}
        size = sum(archive.size(name) for name in models)
        return Summary(modules, bool(manifest["shaped"]), manifest["fallback"] is not None, size)
    except (KeyError, ValueError, TypeError) as error:
        raise _damaged(path, str(error)) from None


def closest(summary: Summary, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Report, Program]:
    """The module for inputs of these shapes, which may be some of all; the first one where there is none."""
    for report, program in summary.modules:
        if shapes.items() <= {port.name: extents(port) for port in program.takes}.items():
            return report, program
    return summary.first


def _open(path: Path, *, share: bool = True) -> MappedArchive:
    try:
        archive = MappedArchive(path, share=share)
        found = archive.manifest["format"]
    except FileNotFoundError:
        raise ModuleFileError(
            f"no such file: {path}. Make it with `collage compile MODEL.onnx -o {path}`."
        ) from None
    except IsADirectoryError:
        raise ModuleFileError(f"{path} is a directory, not a module file.") from None
    except zipfile.BadZipFile:
        raise _damaged(path, "it is cut short or no module file at all") from None
    except OSError as error:
        raise ModuleFileError(f"cannot read {path}: {error.strerror}.") from None
    except (KeyError, ValueError, TypeError, EOFError, NotImplementedError) as error:
        raise _damaged(path, str(error)) from None
    made_by = archive.manifest.get("collage")
    if found != FORMAT or made_by != __version__:
        raise ModuleFileError(
            f"{path} was made by collage {made_by} (file format {found}), this is {__version__} "
            f"(format {FORMAT}). Compile the model again."
        )
    return archive


def _refuse_other_machine(path: Path, manifest: Mapping[str, Any], versions: Mapping[str, str]) -> None:
    made, here = Target(**manifest["target"]), host()
    if made.hardware != here.hardware:
        raise ModuleFileError(
            f"{path} was compiled for {made.hardware}, this machine is {here.hardware}: its kernels may not run, "
            "and its measurements do not hold. Compile the model again here."
        )
    wrong = [
        f"{name} {version} (here: {versions.get(name, 'not available')})"
        for name, version in manifest["versions"].items()
        if versions.get(name) != version
    ]
    if wrong:
        raise ModuleFileError(
            f"{path} needs {', '.join(wrong)}. Install these versions, register the backend, or compile again."
        )


def _damaged(path: Path, detail: str) -> ModuleFileError:
    return ModuleFileError(f"{path} is damaged ({detail}). Compile the model again.")
