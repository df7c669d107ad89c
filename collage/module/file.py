"""Reading the module file: its archive, its parts, and its summary, which needs no kernel."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage._version import __version__
from collage.core.typed import shown, typed
from collage.errors import CollageError, ModuleFileError, to_paste
from collage.graph.dataflow import np_dtype
from collage.kernel.frames import Artifact, Framed
from collage.kernel.model_artifact import model_artifact, protobuf
from collage.kernel.target import Target
from collage.module.archive import MappedArchive
from collage.report.report import Report
from collage.runtime.inputs import extents
from collage.runtime.parts import Parts
from collage.schedule.check_program import MOST_THREADS, check_ports
from collage.schedule.program import Program
from collage.schedule.read_program import read_program

log = logging.getLogger(__name__)

FORMAT = 6
ASSUMING_FORMAT = 7
"""That of files with programs that are right for some values of an input only, which older versions do not compare."""
APART_FORMAT = 8
"""That of files with an ONNX model whose large weights are arrays of their own."""

_MAGIC = b"PK"
_WEIGHTS_FROM = {"cublas": 0, "cudnn graph": 1, "native": 0, "onednn": 0, "onnx": 1, "tvm": 0}
"""From which array on an artifact has nothing but weights, by its kind. Other kinds, as those of PyTorch and of TVM on
a GPU, may have code in any array. That of ``tvm`` is copied by its backend, and compared with a digest in the head."""


@dataclass(frozen=True)
class Reading:
    """An archive, and how its entries are read: ``verify`` compares them with their digests."""

    archive: MappedArchive
    verify: bool

    def module(self, manifest: Mapping[str, Any]) -> tuple[Parts, Report]:
        """Read a module that the manifest describes. Raises ValueError, KeyError, TypeError or BadZipFile."""
        return self.parts(manifest), Report.from_json(manifest["report"])

    def parts(self, manifest: Mapping[str, Any]) -> Parts:
        """Read a module without its report. Raises ValueError, KeyError, TypeError or BadZipFile."""
        program = read_program(manifest["program"])
        found: dict[str, Artifact] = {}
        artifacts = []
        for names in manifest["artifacts"]:
            key = json.dumps(names)  # equal artifacts become one object, and so one kernel
            if key not in found:
                found[key] = self.artifact(names)
            artifacts.append(found[key])
        if len(artifacts) != len(program.executed):
            raise ValueError(f"it has {len(artifacts)} kernels for {len(program.executed)} launches")
        constants = {}
        for value, name in manifest["constants"].items():
            kind = program.types[int(value)]
            raw = np.frombuffer(self.archive.get(name, check=True), np.uint8)
            if raw.nbytes != kind.nbytes:
                raise ValueError(f"a constant {kind} has {raw.nbytes} bytes")
            constants[int(value)] = raw.view(np_dtype(kind.dtype)).reshape(kind.shape)
        check_ports(program, constants)
        target, versions = target_of(manifest), typed(dict[str, str], manifest["versions"])
        original = None if manifest["careful"] is None else self.model(manifest["careful"])
        return Parts(program, artifacts, constants, target, versions, original)

    def artifact(self, names: Mapping[str, Any]) -> Artifact:
        """Read a kernel's artifact: its bytes, or its head and its arrays."""
        if "bytes" in names:
            return self.program(names["bytes"])
        head = self.program(names["head"])
        programs = _programs(Framed(head, ()).header, len(names["arrays"]))
        arrays = tuple(
            self.program(name) if at < programs else self.archive.get(name, check=self.verify)
            for at, name in enumerate(names["arrays"])
        )
        return Framed(head, arrays, mapped=True)

    def model(self, names: str | Mapping[str, Any]) -> Artifact:
        """Read an ONNX model: one entry, or a head and arrays."""
        return self.program(names) if isinstance(names, str) else self.artifact(names)

    def program(self, name: str) -> memoryview:
        """Read an entry that may be code, or may decide what code does; it is always compared with its digest."""
        return self.archive.get(name, check=True)


def _programs(header: Mapping[str, Any], arrays: int) -> int:
    """How many of the arrays of an artifact, the first ones, may be code, or decide what code does."""
    kind = header.get("kind")
    return _WEIGHTS_FROM.get(kind, arrays) if isinstance(kind, str) else arrays


def verified(path: Path) -> MappedArchive:
    """Open a file and compare all its entries with their digests.

    Raises ModuleFileError.
    """
    archive = open_archive(path)
    with damage(path):
        archive.verify()
    return archive


@dataclass(frozen=True)
class Summary:
    """The contents of a file that can be read without loading a kernel: report and program of each module in it.

    ``shaped`` files have a module for each set of shapes, and perhaps a ``fallback`` for others. ``model_bytes`` is
    the size of the original model, which answers calls for which fast kernels would be wrong; 0 where none is needed.
    """

    modules: tuple[tuple[Report, Program], ...]
    shaped: bool
    fallback: bool
    model_bytes: int = 0

    @property
    def first(self) -> tuple[Report, Program]:
        """The report and program of the first or only module."""
        return self.modules[0]


def read_summary(path: Path) -> Summary:
    """Read the reports and programs of a file, without loading a kernel. Raises ModuleFileError."""
    archive = open_archive(path)
    refuse_decoder(path, archive)
    manifest = archive.manifest
    with damage(path):
        modules = tuple(
            (Report.from_json(each["report"]), read_program(each["program"])) for each in manifest["modules"]
        )
        if not modules:
            raise ValueError("it holds no module")
        for report, program in modules:
            if any(not 0 <= node < len(report.nodes) for region in program.regions for node in region.nodes):
                raise ValueError("its report lacks nodes that its regions are of")
        models = [each["careful"] for each in manifest["modules"] if each["careful"] is not None]
        size = sum(archive.size(name) for name in {name for each in models for name in _entries(each)})
        return Summary(modules, typed(bool, manifest["shaped"]), manifest["fallback"] is not None, size)


def read_suffix_models(path: Path) -> list[bytes | None]:
    """For each module of a file, the protobuf of the ONNX model that its suffix runs, or None if it has no suffix.

    Raises ModuleFileError.
    """
    archive = open_archive(path)
    refuse_decoder(path, archive)
    found: list[bytes | None] = []
    with damage(path):
        reading = Reading(archive, verify=False)
        for each in archive.manifest["modules"]:
            program = read_program(each["program"])
            if program.suffix is None:
                found.append(None)
            elif each["careful"] is not None and not program.launches:
                found.append(protobuf(model_artifact(reading.model(each["careful"]))))
            else:
                found.append(protobuf(model_artifact(reading.artifact(each["artifacts"][-1]))))
    return found


def suffix_model(parts: Parts) -> bytes | None:
    """The protobuf of the ONNX model that the suffix of a module runs, or None if it has no suffix.

    It is the original model if an engine runs all of it, since engines may keep it in a form of their own.
    """
    if parts.program.suffix is None:
        return None
    whole = parts.original is not None and not parts.program.launches
    return protobuf(model_artifact(parts.original if whole and parts.original is not None else parts.artifacts[-1]))


def _entries(model: str | Mapping[str, Any]) -> list[str]:
    """The names of the entries of an ONNX model."""
    if isinstance(model, str):
        return [model]
    return [typed(str, model["head"]), *typed(list[str], model["arrays"])]


def closest(summary: Summary, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Report, Program]:
    """The first module whose inputs have these shapes, or the first one of all where there is none.

    ``shapes`` need not have all inputs.
    """
    for report, program in summary.modules:
        if shapes.items() <= {port.name: extents(port) for port in program.model_inputs}.items():
            return report, program
    return summary.first


def open_archive(path: Path, *, share: bool = True) -> MappedArchive:
    """Open a module file of this version. Raises ModuleFileError."""
    try:
        archive = MappedArchive(path, share=share)
    except FileNotFoundError as error:
        raise ModuleFileError(
            f"no such file: {path}. Make it with {to_paste('compile', 'MODEL.onnx', '-o', path)}."
        ) from error
    except IsADirectoryError as error:
        raise ModuleFileError(f"{path} is a directory, not a module file.") from error
    except zipfile.BadZipFile as error:
        if not _begins_as_archive(path):
            raise ModuleFileError(_no_module(path)) from error
        raise _damaged(path, "it is cut short") from error
    except OSError as error:
        raise ModuleFileError(f"cannot read {path}: {error.strerror}.") from error
    except (KeyError, ValueError, TypeError, EOFError, NotImplementedError) as error:
        if not _begins_as_archive(path):
            raise ModuleFileError(_no_module(path)) from error
        raise _damaged(path, _text(error)) from error
    made_by, found = archive.manifest.get("collage"), archive.manifest.get("format")
    if found not in (FORMAT, ASSUMING_FORMAT, APART_FORMAT):
        newer = isinstance(found, int) and found > APART_FORMAT
        raise ModuleFileError(
            f"{path} was made by collage {shown(made_by)} (file format {shown(found)}), and this is {__version__} "
            f"(format {APART_FORMAT}). {'Install that version' if newer else 'Compile the model again'}."
        )
    if not archive.has_digest:
        raise _damaged(path, "it has no digest")
    return archive


def _begins_as_archive(path: Path) -> bool:
    """Whether the file begins as module files do, or is too short to begin otherwise."""
    with open(path, "rb") as stream:
        return _MAGIC.startswith(stream.read(len(_MAGIC)))


def _no_module(path: Path) -> str:
    """The text for a file that is something else."""
    if path.suffix == ".onnx":
        compiled = to_paste("compile", path, "-o", path.with_suffix(".collage"))
        return f"{path} is a model, not a module file. {compiled} compiles it."
    return f"{path} is no module file. `collage compile MODEL.onnx -o OUT.collage` makes one."


def refuse_decoder(path: Path, archive: MappedArchive) -> None:
    """Raise ModuleFileError where the file is a decoder's, whose modules are no model by themselves."""
    if "decoder" in archive.manifest:
        raise ModuleFileError(
            f"{path} is a compiled decoder, not a module: {to_paste('serve', path)} serves it, and "
            f"{to_paste('show', path)} shows its contents."
        )


def target_of(manifest: Mapping[str, Any]) -> Target:
    """The machine that a module was compiled for. Raises ValueError, KeyError or TypeError."""
    found = typed(Target, manifest["target"])
    if not 1 <= found.threads <= MOST_THREADS:
        raise ValueError(f"it is for {found.threads} threads")
    return found


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Turn what reading the contents of a file raises into a ModuleFileError that names the file."""
    try:
        yield
    except CollageError as error:
        if isinstance(error, ModuleFileError):
            raise
        raise _damaged(path, _text(error)) from error
    except (LookupError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise _damaged(path, _text(error)) from error


def _text(error: Exception) -> str:
    """The error in words; the text of a KeyError would be only the missing name."""
    return f"it lacks {shown(error.args[0])}" if isinstance(error, KeyError) and error.args else str(error)


def _damaged(path: Path, detail: str) -> ModuleFileError:
    return ModuleFileError(f"{path} is damaged ({detail}). Compile the model again.")
