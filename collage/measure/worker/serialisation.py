"""Serialisation of what is sent to workers, also of backends and storage formats that a script or notebook defines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import cloudpickle

from collage.backends.base import Backend
from collage.errors import MeasurementError


def pickle_backend(name: str, backend: Backend) -> bytes:
    """Pickle a backend, by reference where the worker can import its class, and else with the class's code.

    Raises MeasurementError, which names the backend and the way out.
    """
    foreign = [module for module in _modules(type(backend)) if not _worker_can_import(module)]
    try:
        with _by_value(foreign):
            data: bytes = cloudpickle.dumps(backend)
    except Exception as error:  # pickling runs the backend's own code, which may raise anything
        raise MeasurementError(
            f"backend {name} cannot be sent to the measuring worker: {type(error).__name__}: {error}. "
            "Keep files, sessions and locks out of its instances; open them in load()."
        ) from error
    return data


def carried_modules(backends: Iterable[Backend]) -> tuple[str, ...]:
    """Names of the modules with classes of the backends' storage formats that the worker cannot import."""
    formats = [each for backend in backends for each in backend.formats()]
    modules = dict.fromkeys(module for each in formats for module in _modules(type(each)))
    return tuple(module.__name__ for module in modules if not _worker_can_import(module))


def pickle_message(message: object, carried: Iterable[str]) -> bytes:
    """Pickle a message to the worker, with the code of the classes in it that the ``carried`` modules define."""
    with _by_value([sys.modules[name] for name in carried]):
        data: bytes = cloudpickle.dumps(message)
    return data


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    """Pickle what these modules define with its code inside the block."""
    known = cloudpickle.list_registry_pickle_by_value()
    new = [module for module in modules if module.__name__ not in known and module.__name__ != "__main__"]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


def _modules(kind: type) -> list[ModuleType]:
    names = dict.fromkeys(each.__module__ for each in kind.__mro__ if each is not object)
    return [sys.modules[name] for name in names if name in sys.modules]


def _worker_can_import(module: ModuleType) -> bool:
    """Whether a fresh process with our ``sys.path`` would find the same file under the module's name."""
    if module.__name__ == "__main__":
        return False
    path = None
    spec = None
    name = ""
    for part in module.__name__.split("."):
        name = f"{name}.{part}" if name else part
        spec = _find(name, path)
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or [])
    file = getattr(module, "__file__", None)
    if spec is None or not spec.has_location or spec.origin is None or file is None:
        return spec is not None  # the module is built in, or frozen
    return Path(spec.origin).resolve() == Path(file).resolve()


def _find(name: str, path: list[str] | None) -> ModuleSpec | None:
    """What an import would find if the module were not loaded yet; importlib.util.find_spec asks a loaded module."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None
