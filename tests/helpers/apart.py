"""Small models that are treated as large ones: their weights are in files."""

from __future__ import annotations

import pytest

from collage.frontend.read import apart


@pytest.fixture
def all_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move all weights of 64 bytes and more out of all models."""
    monkeypatch.setattr(apart, "LARGE_MODEL", 1)
    monkeypatch.setattr(apart, "LARGE_WEIGHT", 64)
