"""The backend of ``torch.compile`` with a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collage import api

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of compiled subgraphs, in a user's cache for this test. Compiles take seconds instead of a minute."""
    from torch._dynamo.backends import registry

    from collage.torch_backend import backend

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(backend, "BUDGET_S", 1.0)
    monkeypatch.setattr(api, "BUDGET_S", 1.0)
    if "collage" not in registry.list_backends():  # the installed project is older than its entry point
        registry.register_backend(backend.compile_subgraph, name="collage")
    torch.compiler.reset()
    torch.manual_seed(0)
    yield tmp_path / "collage" / "torch"
    torch.compiler.reset()
