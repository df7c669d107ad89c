"""Little effort in each Python that a test starts, once Collage is imported there, and TVM without PyTorch.

``tests/conftest.py`` puts this folder on ``PYTHONPATH``, and Python imports a module of this name when it starts.
TVM is imported as Collage's commands and workers do it, which takes a third of the time where PyTorch is installed; the
process of the tests themselves has both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeAlias

_Load: TypeAlias = Callable[[Any], None]
_ROOT = Path(__file__).parents[2]
_RACE = "collage.bench.race"


def _module(path: Path) -> Any:
    """The module in a file, apart from what can be imported."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _with_little_effort(load: _Load, module: Any) -> None:
    load(module)
    little = _module(_ROOT / "tests" / "little_effort.py")
    (little.race_shortly if module.__name__ == _RACE else little.take_little)(module)


def _lean(load: _Load, module: Any) -> None:
    with _module(_ROOT / "collage" / "core" / "lean_imports.py").lean_imports():
        load(module)


_WAYS: Mapping[str, Callable[[_Load, Any], None]] = {
    "collage.measure.timing.effort": _with_little_effort,
    _RACE: _with_little_effort,
    "tvm": _lean,
    "tvm_ffi": _lean,
}


class _Finder(MetaPathFinder):
    """Finds some modules as usual, and loads each in a way of its own."""

    def __init__(self) -> None:
        self._sought = dict(_WAYS)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        way = self._sought.pop(name, None)
        if way is None:
            return None
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = partial(way, spec.loader.exec_module)
        return spec


sys.meta_path.insert(0, _Finder())
