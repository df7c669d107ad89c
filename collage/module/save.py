"""Writing the module file: an archive with a manifest and the kernels' artifacts and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collage._version import __version__
from collage.backends.base import BUILT_IN
from collage.core.new_file import new_file
from collage.frontend.engine_models import set_apart
from collage.kernel.buffers import as_bytes
from collage.kernel.frames import Artifact, Framed, parts_of
from collage.kernel.model_artifact import model_artifact
from collage.module.archive import NewArchive
from collage.module.file import APART_FORMAT, ASSUMING_FORMAT, FORMAT
from collage.report.report import Report
from collage.runtime.parts import Parts


def save_modules(
    path: Path,
    modules: Sequence[tuple[Parts, Report]],
    *,
    shaped: bool = False,
    model: Artifact | None = None,
) -> None:
    """Write the file under another name and rename it, so that no other process sees a half-written file.

    ``shaped`` files have a module for each set of shapes, and perhaps an ONNX ``model`` for all other shapes. What the
    kernels of several modules share is stored once. Raises OSError when the file cannot be written.
    """
    modules = [(with_weights_apart(parts), report) for parts, report in modules]
    model = None if model is None else set_apart(model_artifact(model))
    with new_file(path) as stream, NewArchive(stream) as archive:
        manifest = {
            "format": _format(modules, model),
            "collage": __version__,
            "shaped": shaped,
            "modules": [_put_module(archive, *each) for each in modules],
            "fallback": None if model is None else _put_model(archive, model),
        }
        archive.finish(manifest)


def _put_module(archive: NewArchive, parts: Parts, report: Report) -> dict[str, Any]:
    return {**put_parts(archive, parts), "report": report.to_json()}


def put_parts(archive: NewArchive, parts: Parts) -> dict[str, Any]:
    """Store a module without a report, and return its part of the manifest."""
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
        "careful": None if parts.original is None else _put_model(archive, parts.original),
    }


def with_weights_apart(parts: Parts) -> Parts:
    """The parts with large weights of whole models as arrays of their own, so that equal ones are stored once."""
    original = None if parts.original is None else set_apart(model_artifact(parts.original))
    if parts.program.suffix is None:
        return replace(parts, original=original)
    *kernels, model = parts.artifacts
    return replace(parts, original=original, artifacts=[*kernels, set_apart(model_artifact(model))])


def _format(modules: Sequence[tuple[Parts, Report]], model: Artifact | None) -> int:
    """The oldest format that can hold the modules."""
    models = [model, *(parts.original for parts, _ in modules)]
    models += [parts.artifacts[-1] for parts, _ in modules if parts.program.suffix is not None]
    if any(isinstance(each, Framed) for each in models):
        return APART_FORMAT
    return ASSUMING_FORMAT if any(parts.program.assumed for parts, _ in modules) else FORMAT


def _put_model(archive: NewArchive, model: Artifact) -> str | dict[str, Any]:
    """Store an ONNX model, and return its part of the manifest."""
    return _put_artifact(archive, model) if isinstance(model, Framed) else archive.put("models", model)


def _put_artifact(archive: NewArchive, artifact: Artifact) -> dict[str, Any]:
    """Store an artifact, and return its part of the manifest, which names its bytes, or its head and its arrays."""
    try:
        framed = artifact if isinstance(artifact, Framed) else parts_of(artifact)
    except ValueError:
        assert not isinstance(artifact, Framed)
        return {"bytes": archive.put("artifacts", artifact)}
    arrays = [archive.put("arrays", each) for each in framed.arrays]
    return {"head": archive.put("artifacts", framed.head), "arrays": arrays}
