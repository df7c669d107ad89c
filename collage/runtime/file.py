"""The module file: an archive with a manifest, the kernels' artifacts, and nothing else."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage._version import __version__
from collage.backends.base import BUILT_IN
from collage.backends.registry import Registry
from collage.errors import CollageError, ModuleFileError
from collage.graph.dataflow import np_dtype
from collage.new_file import new_file
from collage.report import Report
from collage.runtime.archive import MappedArchive, NewArchive
from collage.runtime.buffers import as_bytes
from collage.runtime.executor import Executor
from collage.runtime.fallback import Fallback
from collage.runtime.frames import Artifact, Framed, parts_of
from collage.runtime.inputs import extents
from collage.runtime.module import CompiledModule, Parts, load_parts
from collage.runtime.shaped import ShapedModule
from collage.runtime.tail import TailExecutor
from collage.schedule.check_program import MOST_THREADS, check_ports
from collage.schedule.program import Program
from collage.target import Target, cores, host
from collage.typed import shown, typed

log = logging.getLogger(__name__)

FORMAT = 5


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
    path: Path,
    registry: Registry,
    *,
    share: bool = True,
    verify: bool = False,
    strict: bool = False,
    trusted_key: str | Path | None = None,
) -> CompiledModule | ShapedModule:
    """The module of a file, checked against this machine and the installed libraries.

    Kernels read their weights where the file is mapped, or with ``share`` off in memory of this process; with
    ``verify`` all of it is compared with its digest first. With ``trusted_key``, the path of a public key, the file
    must be signed by its owner; nothing in it is looked at before. With ``strict`` a module of several sets of shapes
    has no fallback for others. Raises ModuleFileError naming the reason and the way out.
    """
    archive = _open(path, share=share, trusted_key=trusted_key)
    read = _Reading(archive, verify=verify or trusted_key is not None, own=trusted_key is not None)
    manifest = archive.manifest
    versions = {name: found.version for name, found in registry.availability().items() if found}
    with _damage(path):
        for each in manifest["modules"]:
            _refuse_other_machine(path, each, versions)
        found = [read.module(each) for each in manifest["modules"]]
        if not found:
            raise ValueError("it holds no module")
        ports = {tuple(p.name for p in (*parts.program.takes, *parts.program.gives)) for parts, _ in found}
        if len(ports) > 1:
            raise ValueError("its modules have different inputs or outputs")
        model = None if manifest["fallback"] is None else read.program(manifest["fallback"])
        shaped = typed(bool, manifest["shaped"]) or len(found) != 1
    threads = max(parts.target.threads for parts, _ in found)
    allowed = cores()
    if threads > allowed.usable:
        log.warning(
            "%s was compiled for %d threads, and this process may use %s: it gives the same results, more "
            "slowly than a module compiled with --threads %d would",
            *(path, threads, allowed, allowed.usable),
        )
    modules = [CompiledModule(parts, report, _loaded(path, parts, registry)) for parts, report in found]
    if not shaped:
        return modules[0]
    program = modules[0].program
    fallback = None if model is None or strict else Fallback(model, program.takes, program.gives, threads)
    with _damage(path):
        return ShapedModule(modules, fallback)


def _loaded(path: Path, parts: Parts, registry: Registry) -> Executor | TailExecutor:
    """What runs the parts. Raises ModuleFileError naming the file."""
    try:
        return load_parts(parts, registry)
    except ModuleFileError as error:
        raise ModuleFileError(f"{path}: {error}") from error
    except CollageError as error:
        raise ModuleFileError(f"{path} is damaged, or does not run here ({error})") from error


@dataclass(frozen=True)
class _Reading:
    """How entries are taken from an archive: compared with their digests, and into memory of this process."""

    archive: MappedArchive
    verify: bool
    own: bool

    def module(self, manifest: Mapping[str, Any]) -> tuple[Parts, Report]:
        """What the manifest says of a module. Raises ValueError, KeyError, TypeError or BadZipFile."""
        program = Program.from_json(manifest["program"])
        found: dict[str, Artifact] = {}
        artifacts = []
        for names in manifest["artifacts"]:
            key = json.dumps(names)  # equal artifacts become one, and so one kernel
            if key not in found:
                found[key] = self.artifact(names)
            artifacts.append(found[key])
        if len(artifacts) != len(program.executed):
            raise ValueError(f"it has {len(artifacts)} kernels for {len(program.executed)} launches")
        constants = {}
        for value, name in manifest["constants"].items():
            kind = program.types[int(value)]
            raw = np.frombuffer(self.archive.get(name, check=True, own=self.own), np.uint8)
            if raw.nbytes != kind.nbytes:
                raise ValueError(f"a constant {kind} has {raw.nbytes} bytes")
            constants[int(value)] = raw.view(np_dtype(kind.dtype)).reshape(kind.shape)
        check_ports(program, constants)
        target, versions = _target(manifest), typed(dict[str, str], manifest["versions"])
        careful = None if manifest["careful"] is None else self.program(typed(str, manifest["careful"]))
        parts = Parts(program, artifacts, constants, target, versions, careful)
        return parts, Report.from_json(manifest["report"])

    def artifact(self, names: Mapping[str, Any]) -> Artifact:
        """A kernel's bytes, or its head and its arrays."""
        if "bytes" in names:
            return self.program(names["bytes"])
        arrays = tuple(self.archive.get(name, check=self.verify) for name in names["arrays"])
        return Framed(self.program(names["head"]), arrays, mapped=True)

    def program(self, name: str) -> memoryview:
        """What may be code, or say what code does: always compared."""
        return self.archive.get(name, check=True, own=self.own)


def verified(path: Path, trusted_key: Path | None = None) -> MappedArchive:
    """The archive of a file, all of whose entries have the bytes that were written; signed, where a key is given.

    Raises ModuleFileError.
    """
    archive = _open(path, trusted_key=trusted_key)
    with _damage(path):
        archive.verify()
    return archive


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


def read_summary(path: Path, trusted_key: Path | None = None) -> Summary:
    """What ``collage show`` needs; of a signed file, where a key is given. Raises ModuleFileError."""
    archive = _open(path, trusted_key=trusted_key)
    manifest = archive.manifest
    with _damage(path):
        modules = tuple(
            (Report.from_json(each["report"]), Program.from_json(each["program"]))
            for each in manifest["modules"]
        )
        if not modules:
            raise ValueError("it holds no module")
        for report, program in modules:
            if any(not 0 <= node < len(report.nodes) for region in program.regions for node in region.nodes):
                raise ValueError("its report lacks nodes that its regions are of")
        models = {typed(str, each["careful"]) for each in manifest["modules"] if each["careful"] is not None}
        size = sum(archive.size(name) for name in models)
        return Summary(modules, typed(bool, manifest["shaped"]), manifest["fallback"] is not None, size)


def closest(summary: Summary, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Report, Program]:
    """The module for inputs of these shapes, which may be some of all; the first one where there is none."""
    for report, program in summary.modules:
        if shapes.items() <= {port.name: extents(port) for port in program.takes}.items():
            return report, program
    return summary.first


def _open(path: Path, *, share: bool = True, trusted_key: str | Path | None = None) -> MappedArchive:
    try:
        archive = MappedArchive(path, share=share)
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
        raise _damaged(path, _text(error)) from None
    if trusted_key is not None:
        from collage.signing import check_signature

        check_signature(path, archive, Path(trusted_key))
    made_by, found = archive.manifest.get("collage"), archive.manifest.get("format")
    if found != FORMAT or made_by != __version__:
        raise ModuleFileError(
            f"{path} was made by collage {shown(made_by)} (file format {shown(found)}), this is {__version__} "
            f"(format {FORMAT}). Compile the model again."
        )
    if not archive.has_digest:
        raise _damaged(path, "it has no digest")
    return archive


def _refuse_other_machine(path: Path, manifest: Mapping[str, Any], versions: Mapping[str, str]) -> None:
    made, here = _target(manifest), host()
    if made.hardware != here.hardware:
        raise ModuleFileError(
            f"{path} was compiled for {made.hardware}, this machine is {here.hardware}: its kernels may not run, "
            "and its measurements do not hold. Compile the model again here."
        )
    wrong = [
        f"{name} {version} (here: {versions.get(name, 'not available')})"
        for name, version in typed(dict[str, str], manifest["versions"]).items()
        if versions.get(name) != version
    ]
    if wrong:
        raise ModuleFileError(
            f"{path} needs {', '.join(wrong)}. Install these versions, register the backend, or compile again."
        )
    tail = manifest["program"]["tail"]
    regions = [*manifest["program"]["regions"], *([] if tail is None else [tail["region"]])]
    unknown = {typed(str, each["backend"]) for each in regions} - {*versions, *BUILT_IN}
    if unknown:
        raise ModuleFileError(
            f"{path} needs backends that are not here: {', '.join(map(shown, sorted(unknown)))}. Install or register "
            "them (`collage backends` lists those that are here), or compile the model again."
        )


def _target(manifest: Mapping[str, Any]) -> Target:
    found = typed(Target, manifest["target"])
    if not 1 <= found.threads <= MOST_THREADS:
        raise ValueError(f"it is for {found.threads} threads")
    return found


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Whatever reading the contents of a file raises, as an error that names it."""
    try:
        yield
    except CollageError as error:
        if isinstance(error, ModuleFileError):
            raise
        raise _damaged(path, _text(error)) from None
    except (LookupError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise _damaged(path, _text(error)) from None


def _text(error: Exception) -> str:
    """What is wrong, in words: a KeyError has only the name of what is missing."""
    return f"it lacks {shown(error.args[0])}" if isinstance(error, KeyError) and error.args else str(error)


def _damaged(path: Path, detail: str) -> ModuleFileError:
    return ModuleFileError(f"{path} is damaged ({detail}). Compile the model again.")
