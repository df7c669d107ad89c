"""Little effort in each Python that a test starts, once Collage is imported there.

``tests/conftest.py`` puts this folder on ``PYTHONPATH``, and Python imports a module of this name when it starts.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_NAME = "collage.measure_db.effort"


def _take_little(module: Any) -> None:
    spec = spec_from_file_location("little_effort", Path(__file__).parents[1] / "little_effort.py")
    assert spec is not None and spec.loader is not None
    little = module_from_spec(spec)
    spec.loader.exec_module(little)
    little.take_little(module)


class _Finder(MetaPathFinder):
    """Finds the module of efforts as usual, and changes it when it is loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_change(module: Any) -> None:
            load(module)
            _take_little(module)

        vars(spec.loader)["exec_module"] = load_and_change
        return spec


sys.meta_path.insert(0, _Finder())
