"""The module file: a zip archive with a manifest, one artifact per kernel, and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import zipfile
from collections.abc import Mapping
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
from collage.runtime.module import CompiledModule, Parts, build_executor
from collage.schedule.program import Program
from collage.target import Target, host, usable_cores

log = logging.getLogger(__name__)

FORMAT = 1
_MANIFEST = "manifest.json"


def save_parts(path: Path, parts: Parts, report: Report) -> None:
    """Write the file beside its place and move it there, so that no half-written file is ever seen."""
    digests = [hashlib.sha256(artifact).hexdigest() for artifact in parts.artifacts]
    manifest = {
        "format": FORMAT,
        "collage": __version__,
        "target": {
            "device": parts.target.device,
            "flags": parts.target.flags,
            "threads": parts.target.threads,
        },
        "versions": {n: v for n, v in parts.versions.items() if n not in BUILT_IN},
        "program": parts.program.to_json(),
        "artifacts": digests,
        "constants": [str(value) for value in parts.constants],
        "report": report.to_json(),
    }
    with new_file(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest), compress_type=zipfile.ZIP_DEFLATED)
        written: set[str] = set()
        for digest, artifact in zip(digests, parts.artifacts, strict=True):
            if digest not in written:  # identical kernels are stored once
                archive.writestr(f"artifacts/{digest}", artifact)
                written.add(digest)
        for value, array in parts.constants.items():
            archive.writestr(f"constants/{value}", np.ascontiguousarray(array).tobytes())


def load_module(path: Path, registry: Registry) -> CompiledModule:
    """The module of a file, checked against this machine and the installed libraries.

    Raises ModuleFileError naming the reason and the way out.
    """
    manifest, archive = _open(path)
    with archive:
        _refuse_other_machine(path, manifest, {n: a.version for n, a in registry.availability().items() if a})
        try:
            program = Program.from_json(manifest["program"])
            artifacts = [archive.read(f"artifacts/{digest}") for digest in manifest["artifacts"]]
            constants = {}
            for value in manifest["constants"]:
                kind = program.types[int(value)]
                raw = np.frombuffer(archive.read(f"constants/{value}"), np_dtype(kind.dtype))
                constants[int(value)] = raw.reshape(kind.shape)
            report = Report.from_json(manifest["report"])
        except (KeyError, ValueError, TypeError, zipfile.BadZipFile, OSError, EOFError) as error:
            raise _damaged(path, str(error)) from None
    parts = Parts(program, artifacts, constants, Target(**manifest["target"]), manifest["versions"])
    if parts.target.threads > usable_cores():
        log.warning(
            "%s was compiled for %d threads, and this process may use %d cores: it gives the same results, more "
            "slowly than a module compiled with --threads %d would",
            *(path, parts.target.threads, usable_cores(), usable_cores()),
        )
    return CompiledModule(parts, report, build_executor(parts, registry))


def read_summary(path: Path) -> tuple[Report, Program, dict[str, Any]]:
    """Report, program and manifest of a file without loading any kernel: what ``collage show`` needs."""
    manifest, archive = _open(path)
    archive.close()
    try:
        return Report.from_json(manifest["report"]), Program.from_json(manifest["program"]), manifest
    except (KeyError, ValueError, TypeError) as error:
        raise _damaged(path, str(error)) from None


def _open(path: Path) -> tuple[dict[str, Any], zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
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
    try:
        manifest = json.loads(archive.read(_MANIFEST))
        found = manifest["format"]
    except (KeyError, ValueError, TypeError, zipfile.BadZipFile, io.UnsupportedOperation) as error:
        archive.close()
        raise _damaged(path, str(error)) from None
    if found != FORMAT or manifest.get("collage") != __version__:
        archive.close()
        raise ModuleFileError(
            f"{path} was made by collage {manifest.get('collage')} (file format {found}), this is {__version__} "
            f"(format {FORMAT}). Compile the model again."
        )
    return manifest, archive


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
