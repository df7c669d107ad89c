"""Imports TVM without PyTorch in each Python that a test starts.

``tests/conftest.py`` puts this folder on ``PYTHONPATH``, and Python imports a module of this name when it starts.
TVM is imported as Collage's commands and workers do it, which takes a third of the time where PyTorch is installed; the
process of the tests themselves has both.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_LEAN_IMPORTS = Path(__file__).parents[3] / "collage" / "core" / "lean_imports.py"


def _lean(load: Any, module: Any) -> None:
    spec = spec_from_file_location("lean_imports", _LEAN_IMPORTS)  # without importing Collage
    assert spec is not None and spec.loader is not None
    own = module_from_spec(spec)
    spec.loader.exec_module(own)
    with own.lean_imports():
        load(module)


class _Finder(MetaPathFinder):
    """Finds TVM as usual, and loads it in that way."""

    def __init__(self) -> None:
        self._sought = {"tvm", "tvm_ffi"}

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in self._sought:
            return None
        self._sought.remove(name)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = partial(_lean, spec.loader.exec_module)
        return spec


sys.meta_path.insert(0, _Finder())
