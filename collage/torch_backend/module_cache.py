"""Compiled subgraphs on disk, so that the next process with the same model compiles and measures nothing.

An entry is a module's file. Its name is a hash of the model with its weights, the options, the libraries and the
machine. Files appear whole (see ``new_file``), so that several processes may share the folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx

from collage._version import __version__
from collage.api import compile as compile_model
from collage.api import default_registry, load
from collage.backends.source_digest import keyed_version
from collage.core.surroundings import cache_folder
from collage.errors import CollageError, ModuleFileError, UsageError
from collage.graph.dataflow import Array
from collage.kernel.target import host
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.report.best_so_far import BUDGET, FINISHED

log = logging.getLogger(__name__)

_SUFFIX = ".collage"
_UNUSED_S = 30 * 86400.0
"""Entries that no process has used for so long are removed."""
_NOT_IN_KEY = frozenset(("cache", "db", "progress"))


def cached(
    model: onnx.ModelProto, inputs: Mapping[str, Array], options: Mapping[str, Any]
) -> CompiledModule | ShapedModule:
    """The module of the model, from the cache, or else compiled with these inputs and put there.

    ``options`` are those of ``collage.compile``, and ``cache``: another folder than the user's, or False for none.
    A compile that somebody has stopped, and a cache that cannot be written, leave no entry. Raises what
    ``collage.compile`` raises.
    """
    options = dict(options)
    folder = _folder(options.pop("cache", None))
    path = None if folder is None else folder / f"{_key(model, options)}{_SUFFIX}"
    if path is not None and (found := _loaded(path)) is not None:
        return found
    module = compile_model(model, inputs=dict(inputs) or None, **options)
    if path is not None and module.report.ended in (FINISHED, BUDGET):
        _keep(module, path)
    return module


def _folder(given: Any) -> Path | None:
    """The folder of the cache, or None for no cache. Raises UsageError."""
    if given is False:
        return None
    if given is not None and not isinstance(given, (str, Path)):
        raise UsageError(f"cache must be a folder, or False for no cache; it is {given!r}.")
    try:
        return cache_folder() / "torch" if given is None else Path(given)
    except (OSError, RuntimeError) as error:
        log.info("compiled subgraphs are not kept: %s", error)
        return None


def _loaded(path: Path) -> CompiledModule | ShapedModule | None:
    """The module of an entry, or None if there is none, or it is damaged or of other libraries."""
    if not path.exists():
        return None
    try:
        found = load(path, verify=True, strict=True)
    except (ModuleFileError, OSError) as error:
        log.info("the subgraph is compiled again: %s", error)
        return None
    with suppress(OSError):
        os.utime(path)  # it has been used
    return found


def _keep(module: CompiledModule | ShapedModule, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        module.save(path)
        for each in path.parent.glob(f"*{_SUFFIX}"):
            if time.time() - each.stat().st_mtime > _UNUSED_S:
                each.unlink()
    except (CollageError, OSError) as error:
        log.info("the compiled subgraph is not kept: %s", error)


def _key(model: onnx.ModelProto, options: Mapping[str, Any]) -> str:
    """A hash of all that decides what the module is."""
    registry = default_registry()
    versions = {
        name: keyed_version(registry[name], found.version) for name, found in registry.availability().items() if found
    }
    chosen = sorted((name, repr(value)) for name, value in options.items() if name not in _NOT_IN_KEY)
    hasher = hashlib.sha256(repr((__version__, host(), sorted(versions.items()), chosen)).encode())
    graph = model.graph
    for tensor in graph.initializer:
        hasher.update(repr((tensor.name, [*tensor.dims], tensor.data_type, len(tensor.raw_data))).encode())
        hasher.update(tensor.raw_data or tensor.SerializeToString(deterministic=True))
    for each in (*graph.input, *graph.output, *graph.node, *model.functions, *model.opset_import):
        hasher.update(each.SerializeToString(deterministic=True))
    return hasher.hexdigest()[:32]
