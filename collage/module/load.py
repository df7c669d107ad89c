"""Loading a module file: checking it against this machine and its libraries, and making a callable module of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage.backends.base import BUILT_IN, Availability
from collage.backends.registry import Registry
from collage.core.typed import shown, typed
from collage.errors import CollageError, ModuleFileError
from collage.kernel.target import cores, host
from collage.module.file import Reading, damage, open_archive, refuse_decoder, target_of
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.runtime.executor import Executor
from collage.runtime.original import Fallback
from collage.runtime.parts import Parts, load_parts
from collage.runtime.suffix import SuffixExecutor

log = logging.getLogger(__name__)


def load_file(
    path: Path,
    registry: Registry,
    *,
    share: bool = True,
    verify: bool = False,
    strict: bool = False,
) -> CompiledModule | ShapedModule:
    """Load the module of a file, and check it against this machine and the installed libraries.

    Kernels read their weights in the mapped file, or with ``share`` off in memory of this process. ``verify`` compares
    all entries with their digests first. With ``strict`` a module of several sets of shapes has no fallback for others.
    Raises ModuleFileError, which names the reason and the way out.
    """
    archive = open_archive(path, share=share)
    refuse_decoder(path, archive)
    read = Reading(archive, verify=verify)
    manifest = archive.manifest
    available = registry.availability()
    with damage(path):
        for each in manifest["modules"]:
            refuse_other_machine(path, each, available)
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
    modules = [CompiledModule(parts, report, _loaded(path, parts, registry)) for parts, report in found]
    if not shaped:
        return modules[0]
    program = modules[0].program
    fallback = (
        None if model is None or strict else Fallback(model, program.model_inputs, program.model_outputs, threads)
    )
    with damage(path):
        return ShapedModule(modules, fallback)


def _loaded(path: Path, parts: Parts, registry: Registry) -> Executor | SuffixExecutor:
    """The executor of the parts. Raises ModuleFileError, which names the file."""
    try:
        return load_parts(parts, registry)
    except ModuleFileError as error:
        raise ModuleFileError(f"{path}: {error}") from error
    except CollageError as error:
        if isinstance(error.__cause__, MemoryError):
            raise ModuleFileError(f"{path} cannot be loaded: {error}") from error
        raise ModuleFileError(f"{path} is damaged, or does not run here ({error})") from error


def refuse_other_machine(path: Path, manifest: Mapping[str, Any], available: Mapping[str, Availability]) -> None:
    """Raise ModuleFileError where a module of the file was compiled for other hardware, or for other libraries.

    ``available`` are the backends that are registered here, by name.
    """
    made, here = target_of(manifest), host()
    if made.hardware != here.hardware:
        raise ModuleFileError(
            f"{path} was compiled for {made.hardware}, this machine is {here.hardware}: its kernels may not run, "
            "and its measurements do not hold. Compile the model again here."
        )
    wrong = [
        f"{name} {version} (here: {_what_is_here(available.get(name))})"
        for name, version in typed(dict[str, str], manifest["versions"]).items()
        if name not in available or available[name] != Availability(version)
    ]
    if wrong:
        raise ModuleFileError(
            f"{path} needs {', '.join(wrong)}. Install these versions, register the backend, or compile again."
        )
    tail = manifest["program"]["tail"]
    regions = [*manifest["program"]["regions"], *([] if tail is None else [tail["region"]])]
    here_now = {name for name, found in available.items() if found}
    unknown = {typed(str, each["backend"]) for each in regions} - {*here_now, *BUILT_IN}
    if unknown:
        raise ModuleFileError(
            f"{path} needs backends that are not here: {', '.join(map(shown, sorted(unknown)))}. Install or register "
            "them (`collage backends` lists those that are here), or compile the model again."
        )


def _what_is_here(found: Availability | None) -> str:
    """The version of a backend that is here, or why it is not."""
    if found is None:
        return "not registered"
    return found.version if found else f"not available, {found.reason}"
