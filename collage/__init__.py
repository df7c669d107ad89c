"""Collage: compile an ONNX model to the fastest mix of the kernel libraries and engines on this machine.

``collage.compile("model.onnx")`` measures and places; the module it returns is called with arrays, saved with
``save`` and loaded with ``collage.load``. Backends are registered with ``collage.register_backend``, patterns
with ``collage.add_backend_pattern`` and ``collage.add_backend_pattern_rule``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from collage._version import __version__
from collage.core.surroundings import prepare
from collage.errors import CollageError

if TYPE_CHECKING:
    from collage.api import (
        add_backend_pattern,
        add_backend_pattern_rule,
        compile,
        compile_shapes,
        default_registry,
        load,
        register_backend,
    )
    from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
    from collage.backends.engine import Engine
    from collage.backends.registry import Registry, builtin_registry
    from collage.backends.tuner import Tuner
    from collage.doors.session import InferenceSession
    from collage.errors import (
        ClusterError,
        DatabaseError,
        InputError,
        MeasurementError,
        ModelError,
        ModuleFileError,
        NoPlacementError,
        RegistrationError,
        UsageError,
    )
    from collage.frontend.subgraph import Subgraph
    from collage.graph.dataflow import Node, OpKind, TensorType
    from collage.graph.formats import StorageFormat
    from collage.graph.storage import Storage
    from collage.kernel.kernel import Call, Kernel, Session
    from collage.kernel.options import BuildOptions, Variant
    from collage.kernel.transform import LayoutTransform
    from collage.module.batched import Batched
    from collage.module.module import CompiledModule
    from collage.module.shaped import ShapedModule
    from collage.patterns.context import MatchContext, OpNode
    from collage.patterns.language import is_const, is_op, is_tuple, wildcard
    from collage.patterns.match import Found, MatchSource
    from collage.patterns.rules import BasePatternRule, check_path
    from collage.runtime.bound import BoundCall
    from collage.runtime.bound_engine import BoundEngine, BoundSuffix

prepare()

_HOMES = {
    "collage.api": "add_backend_pattern add_backend_pattern_rule compile compile_shapes default_registry load "
    "register_backend",
    "collage.backends.base": "Availability Backend BackendKind UnsupportedError",
    "collage.backends.engine": "Engine",
    "collage.backends.registry": "Registry builtin_registry",
    "collage.backends.tuner": "Tuner",
    "collage.doors.session": "InferenceSession",
    "collage.errors": "ClusterError DatabaseError InputError MeasurementError ModelError ModuleFileError "
    "NoPlacementError RegistrationError UsageError",
    "collage.frontend.subgraph": "Subgraph",
    "collage.graph.dataflow": "Node OpKind TensorType",
    "collage.graph.formats": "StorageFormat",
    "collage.graph.storage": "Storage",
    "collage.kernel.kernel": "Call Kernel Session",
    "collage.kernel.options": "BuildOptions Variant",
    "collage.kernel.transform": "LayoutTransform",
    "collage.patterns.context": "MatchContext OpNode",
    "collage.patterns.language": "is_const is_op is_tuple wildcard",
    "collage.patterns.match": "Found MatchSource",
    "collage.patterns.rules": "BasePatternRule check_path",
    "collage.runtime.bound": "BoundCall",
    "collage.runtime.bound_engine": "BoundEngine BoundSuffix",
    "collage.module.batched": "Batched",
    "collage.module.module": "CompiledModule",
    "collage.module.shaped": "ShapedModule",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Availability",
    "Backend",
    "BackendKind",
    "BasePatternRule",
    "Batched",
    "BoundCall",
    "BoundEngine",
    "BoundSuffix",
    "BuildOptions",
    "Call",
    "ClusterError",
    "CollageError",
    "CompiledModule",
    "DatabaseError",
    "Engine",
    "Found",
    "InferenceSession",
    "InputError",
    "Kernel",
    "LayoutTransform",
    "MatchContext",
    "MatchSource",
    "MeasurementError",
    "ModelError",
    "ModuleFileError",
    "NoPlacementError",
    "Node",
    "OpKind",
    "OpNode",
    "RegistrationError",
    "Registry",
    "Session",
    "ShapedModule",
    "Storage",
    "StorageFormat",
    "Subgraph",
    "TensorType",
    "Tuner",
    "UnsupportedError",
    "UsageError",
    "Variant",
    "__version__",
    "add_backend_pattern",
    "add_backend_pattern_rule",
    "builtin_registry",
    "check_path",
    "compile",
    "compile_shapes",
    "default_registry",
    "is_const",
    "is_op",
    "is_tuple",
    "load",
    "register_backend",
    "wildcard",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use: importing TVM takes a second, importing Collage must not."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'collage' has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
