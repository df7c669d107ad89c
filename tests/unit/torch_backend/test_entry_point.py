"""The entry point by which PyTorch finds the backend."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest


def test_the_entry_point() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["collage"].partition(":")
    assert callable(getattr(import_module(module), name))
