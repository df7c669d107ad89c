"""Whether Collage's own kernels can be used, and what is said when not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from collage.backends.native import Native
from collage.errors import CollageError
from collage.native import core_problem, kernel_library
from collage.native.kernel_library import REVISION, kernel_function, kernels_problem
from collage.native.library import built


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    kernels_problem.cache_clear()
    yield
    kernels_problem.cache_clear()


def library(revision: int = REVISION, isa: int = 512) -> Any:
    return SimpleNamespace(collage_kernels_revision=lambda: revision, collage_kernels_isa=lambda: isa)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
@pytest.mark.parametrize("name", ["_core", "_search", "_kernels", "_kernels_avx2"])
def test_everything_was_built(name: str) -> None:
    """An extension that a compiler refuses is left out of the installation, and tests of it are skipped."""
    assert built(name).is_file()


def test_here() -> None:
    if problem := kernels_problem():
        pytest.skip(problem)
    assert kernel_function("collage_direct_conv")


def _missing() -> Any:
    raise OSError("it was not built")


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (_missing, r"it was not built.*apt install g\+\+"),
        (lambda: SimpleNamespace(), "no attribute"),
        (lambda: library(revision=REVISION - 1), "other sources.*install Collage again"),
        (lambda: library(isa=0), "no AVX2"),
    ],
)
def test_why_not(monkeypatch: pytest.MonkeyPatch, load: Any, words: str) -> None:
    monkeypatch.setattr(kernel_library, "_load", load)
    with pytest.raises(CollageError, match=words):
        kernel_function("collage_direct_conv")
    found = Native().available()
    assert not found
    assert found.reason in (core_problem(), kernels_problem())
