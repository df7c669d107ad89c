"""The registry of backends: built-in ones, those of entry points, and those registered in code."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from inspect import isfunction
from typing import Any

from collage.backends.base import BUILT_IN, Availability, Backend, BackendKind
from collage.backends.engine import Engine
from collage.backends.tuner import Tuner
from collage.core.library_text import raised
from collage.errors import RegistrationError, unknown_names
from collage.graph.formats import StorageFormat
from collage.graph.storage import FORMATS
from collage.kernel.options import BuildOptions
from collage.patterns.match import MatchSource
from collage.patterns.registry import PatternRegistry

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "collage.backends"


@dataclass
class Registry:
    """Backends by name, and the patterns added to them. A compile takes one as a value."""

    patterns: PatternRegistry = field(default_factory=PatternRegistry)
    problems: dict[str, str] = field(default_factory=dict)
    """Entry points that could not be loaded, and why."""
    _backends: dict[str, Backend] = field(default_factory=dict)

    def register(self, backend: Backend, *, replace: bool = False) -> None:
        """Add a backend. With ``replace`` it takes the place of one of the same name, whose added patterns it keeps.

        Raises RegistrationError for a name that is taken, for what is no backend, and for methods that nobody would
        call on it. Nothing is changed then.
        """
        if not isinstance(backend, Backend):
            hint = " Give an instance, not the class." if isinstance(backend, type) else ""
            raise RegistrationError(f"a backend must be an instance of collage.Backend, got {backend!r}.{hint}")
        name = getattr(backend, "name", "")
        if not name or name != name.lower() or not name.isidentifier():
            raise RegistrationError(f"backend name {name!r} must be a lower-case identifier.")
        if name in BUILT_IN and name in self._backends:
            raise RegistrationError(f"the backend name {name!r} is Collage's own; choose another.")
        if name in self._backends and not replace:
            raise RegistrationError(
                f"the backend name {name!r} is taken by {type(self._backends[name]).__qualname__}; choose another, or "
                "register it with replace=True."
            )
        kind = getattr(backend, "kind", None)
        if not isinstance(kind, BackendKind):
            valid = ", ".join(f"collage.BackendKind.{each.name}" for each in BackendKind)
            raise RegistrationError(f"backend {name}: kind is {kind!r}; it must be one of {valid}.")
        _check_methods(name, type(backend))
        self._check_formats(name, backend.formats())
        self._backends[name] = backend

    def _check_formats(self, backend: str, formats: Iterable[StorageFormat]) -> None:
        """Raises RegistrationError for a storage format whose name is another one's, or is no name."""
        others = [each for name, other in self._backends.items() if name != backend for each in other.formats()]
        known = {each.name: each for each in (*FORMATS, *others)}
        for each in formats:
            if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", each.name):
                raise RegistrationError(
                    f"backend {backend}: a storage format is called {each.name!r}; "
                    "small letters, digits and hyphens make a name."
                )
            if known.setdefault(each.name, each) != each:
                raise RegistrationError(
                    f"backend {backend}: the storage format name {each.name!r} is taken; choose another."
                )

    @property
    def formats(self) -> tuple[StorageFormat, ...]:
        """The storage formats that backends have added."""
        return tuple(each for backend in self._backends.values() for each in backend.formats())

    def __getitem__(self, name: str) -> Backend:
        if name not in self._backends:
            raise unknown_names("backend", [name], self.names)
        return self._backends[name]

    def __contains__(self, name: str) -> bool:
        """Whether a backend of this name is registered, a built-in one, too."""
        return name in self._backends

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all registered backends, in order of registration, without ``view`` and ``layout``."""
        return tuple(name for name in self._backends if name not in BUILT_IN)

    def availability(self) -> Mapping[str, Availability]:
        """For each backend, its version or why it is not available."""
        return {name: _probe(self._backends[name]) for name in self.names}

    def select(self, names: Iterable[str] | None = None) -> dict[str, Backend]:
        """The named backends, or all available ones, and the built-in ones in any case.

        Raises UsageError naming all unknown names at once, or a named backend that is not available.
        """
        wanted = self.names if names is None else tuple(dict.fromkeys(n.lower() for n in names))
        unknown = [n for n in wanted if n not in self._backends]
        if unknown:
            raise unknown_names("backend", unknown, self.names)
        chosen: dict[str, Backend] = {}
        for name in wanted:
            probe = _probe(self._backends[name])
            if probe:
                chosen[name] = self._backends[name]
            elif names is not None:
                raise RegistrationError(f"backend {name} is not available: {probe.reason}")
        if not chosen:
            raise RegistrationError("no backend is available; see `collage backends`.")
        for name in sorted(BUILT_IN & self._backends.keys(), reverse=True):
            if _probe(self._backends[name]):
                chosen[name] = self._backends[name]
        return chosen

    def sources(self, name: str, options: BuildOptions) -> tuple[MatchSource, ...]:
        """A backend's own patterns and rules, then those added to it.

        What ``sources`` of a plug-in raises, and what it gives that finds nothing, is left out, with a warning.
        """
        own: list[MatchSource] = []
        try:
            for each in self[name].sources(options):
                if isinstance(each, type) or not callable(getattr(each, "find", None)):
                    what = f"the class {each.__name__}" if isinstance(each, type) else repr(each)
                    log.warning("backend %s: sources() has %s, which is no instance of a rule", name, what)
                else:
                    own.append(each)
        except Exception as error:  # a plug-in's own code
            log.warning(
                "backend %s: its patterns and rules are left out; sources() has to return a list of them: %s",
                name,
                raised(error),
            )
        return (*own, *self.patterns.sources(name))

    def strangers(self) -> tuple[str, ...]:
        """Names that patterns or rules were added for, and that no backend has."""
        return tuple(name for name in self.patterns.backends if name not in self._backends)

    def copy(self) -> Registry:
        """An independent copy."""
        return Registry(self.patterns.copy(), dict(self.problems), dict(self._backends))


def _check_methods(name: str, kind: type[Backend]) -> None:
    """Raises RegistrationError for methods of engines or tuners on what is none: they would be ignored in silence."""
    for role in (Engine, Tuner):
        own = {name for name, each in vars(role).items() if isfunction(each)} - {*dir(Backend)}
        lost = sorted(each for each in own if hasattr(kind, each))
        if lost and not issubclass(kind, role):
            raise RegistrationError(
                f"backend {name} has the method {' and '.join(lost)}, which only a collage.{role.__name__} is asked "
                f"for; derive {kind.__qualname__} from collage.{role.__name__}, too."
            )


def _probe(backend: Backend) -> Availability:
    try:
        found = backend.available()
        if isinstance(found, Availability):
            return found
        return Availability(reason=f"its available() returned {found!r}, which is no collage.Availability")
    except Exception as error:  # a plug-in's own code may raise anything, and must not take the listing down
        return Availability(reason=f"its probe failed: {type(error).__name__}: {error}")


def builtin_registry(*, with_entry_points: bool = True) -> Registry:
    """A fresh registry with the built-in backends and those of the entry-point group ``collage.backends``."""
    from collage.backends.cublas import Cublas
    from collage.backends.cudnn import Cudnn
    from collage.backends.layout import LayoutTransforms
    from collage.backends.mkl import Mkl
    from collage.backends.native import Native
    from collage.backends.onednn import OneDnn
    from collage.backends.onnxruntime import OnnxRuntime
    from collage.backends.onnxruntime_cuda import OnnxRuntimeCuda
    from collage.backends.openvino import OpenVino
    from collage.backends.tables import Tables
    from collage.backends.tensorrt import TensorRt
    from collage.backends.torch_cuda import TorchCuda
    from collage.backends.tvm import Tvm
    from collage.backends.tvm_cuda import TvmCuda
    from collage.backends.view import View

    registry = Registry()
    libraries = (Tvm(), OneDnn(), Mkl(), Native(), TvmCuda(), Cublas(), Cudnn())
    engines = (OnnxRuntime(), OpenVino(), Tables(), TensorRt(), TorchCuda(), OnnxRuntimeCuda())
    for backend in (*libraries, *engines, View(), LayoutTransforms()):
        registry.register(backend)
    if with_entry_points:
        for point in entry_points(group=ENTRY_POINT_GROUP):
            _register_entry_point(registry, point)
    return registry


def _register_entry_point(registry: Registry, point: Any) -> None:
    try:
        loaded = point.load()
        backend = loaded() if isinstance(loaded, type) else loaded
        _check_methods(point.name, type(backend))
        registry.register(backend)
    except Exception as error:  # the plug-in's own code: a broken one costs itself only
        registry.problems[point.name] = f"{point.value}: {type(error).__name__}: {error}"
        log.warning("backend entry point %s cannot be loaded: %s", point.name, error)
