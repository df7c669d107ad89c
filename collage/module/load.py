"""Loading a module file: checking it against this machine and its libraries, and making a callable module of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from collage.backends.registry import Registry
from collage.core.typed import typed
from collage.errors import CollageError, ModuleFileError
from collage.kernel.target import cores
from collage.module.file import Reading, damage, open_archive, refuse_decoder
from collage.module.fit import Fit, fit_of, on_original
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.report.report import Report
from collage.runtime.original import Fallback
from collage.runtime.parts import Parts, load_parts

log = logging.getLogger(__name__)


def load_file(
    path: Path,
    registry: Registry,
    *,
    share: bool = True,
    verify: bool = False,
    strict: bool = False,
) -> CompiledModule | ShapedModule:
    """Load the module of a file, or its original model if the placement does not fit this machine and its libraries.

    Kernels read their weights in the mapped file, or with ``share`` off in memory of this process. ``verify`` compares
    all entries with their digests first. With ``strict`` there is no fallback, neither that
    nor, for a module of several sets of shapes, one for others. Raises ModuleFileError, which names the reason and the
    way out.
    """
    archive = open_archive(path, share=share)
    refuse_decoder(path, archive)
    read = Reading(archive, verify=verify)
    manifest = archive.manifest
    with damage(path):
        fits = [fit_of(each, registry) for each in manifest["modules"]]
        found = [read.module(each) for each in manifest["modules"]]
        if not found:
            raise ValueError("it holds no module")
        ports = {
            tuple(p.name for p in (*parts.program.model_inputs, *parts.program.model_outputs)) for parts, _ in found
        }
        if len(ports) > 1:
            raise ValueError("its modules have different inputs or outputs")
        model = None if manifest["fallback"] is None else read.model(manifest["fallback"])
        shaped = typed(bool, manifest["shaped"]) or len(found) != 1
    threads = max(parts.target.threads for parts, _ in found)
    allowed = cores()
    if threads > allowed.usable:
        log.warning(
            "%s was compiled for %d threads, and this process may use %s: it gives the same results, more "
            "slowly than a module compiled with --threads %d would",
            *(path, threads, allowed, allowed.usable),
        )
    modules = [
        _loaded(path, parts, report, registry, fit, strict) for (parts, report), fit in zip(found, fits, strict=True)
    ]
    _tell(path, fits, modules)
    if not shaped:
        return modules[0]
    program = modules[0].program
    fallback = (
        None if model is None or strict else Fallback(model, program.model_inputs, program.model_outputs, threads)
    )
    with damage(path):
        return ShapedModule(modules, fallback)


def _loaded(path: Path, parts: Parts, report: Report, registry: Registry, fit: Fit, strict: bool) -> CompiledModule:
    """The module, on its placement or, if that does not run here, on the original model.

    Raises ModuleFileError, which names the file and the reason.
    """
    refuse(path, fit, strict)
    why = "; ".join(fit.problems)
    if not why:
        try:
            return CompiledModule(parts, report, load_parts(parts, registry))
        except CollageError as error:
            if isinstance(error.__cause__, MemoryError):
                raise ModuleFileError(f"{path} cannot be loaded: {error}") from error
            if strict or not fit.differences:
                raise ModuleFileError(f"{path} is damaged, or does not run here ({error})") from error
            why = str(error)
    try:
        instead = on_original(parts)
        return CompiledModule(instead, report, load_parts(instead, registry), stored=parts, instead=why)
    except (CollageError, ValueError) as error:
        raise ModuleFileError(
            f"{path} does not run here: {why}. Nor does its original model: {error}. Install what is missing, or "
            "compile the model again here."
        ) from error


def refuse(path: Path, fit: Fit, strict: bool) -> None:
    """Raise ModuleFileError if the placement does not fit, and nothing may stand in for it."""
    if strict and fit.problems:
        raise ModuleFileError(f"{path} does not fit here: {fit}. Install these versions, or compile the model again.")


def _tell(path: Path, fits: Sequence[Fit], modules: Sequence[CompiledModule]) -> None:
    """Warn once of what is other than the module was made for."""
    instead = [each.instead for each in modules if each.instead]
    differences = [*dict.fromkeys(text for fit in fits for text in fit.differences)]
    if instead:
        log.warning(
            "%s runs its original model on ONNX Runtime, since its placement does not run here: %s. Compile the model "
            "again here for the fastest mix (collage doctor says more)",
            *(path, "; ".join([*dict.fromkeys(instead), *differences])),
        )
    elif differences:
        log.warning(
            "%s gives the same results here, and may be slower than a module that is compiled here: %s",
            *(path, "; ".join(differences)),
        )
