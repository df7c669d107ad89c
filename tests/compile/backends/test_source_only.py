"""TVM does not compile the CUDA C++ that it generates where only the source is wanted, and does so elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collage.backends.tvm_cuda_codegen import source_only as module
from collage.backends.tvm_cuda_codegen.source_only import COMPILE, source_only

tvm_ffi = pytest.importorskip("tvm_ffi")


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The sources that TVM's own function was given; it is a stand-in here."""
    found: list[str] = []

    def compile_source(code: str) -> bytes:
        found.append(code)
        return b"machine code"

    usual = tvm_ffi.get_global_func(COMPILE)
    tvm_ffi.register_global_func(COMPILE, compile_source, override=True)
    module._replaced.cache_clear()
    yield found
    tvm_ffi.register_global_func(COMPILE, usual, override=True)
    module._replaced.cache_clear()


def asked() -> Any:
    """What TVM gets when it has a source compiled."""
    compile_source: Callable[[str], Any] = tvm_ffi.get_global_func(COMPILE)
    return compile_source("code")


def test_nothing_is_compiled_inside(compiled: list[str]) -> None:
    with source_only():
        assert asked() == b""
        with source_only():
            assert asked() == b""
        assert asked() == b""
    assert not compiled
    assert asked() == b"machine code" and compiled == ["code"]


def test_other_threads_go_on_compiling(compiled: list[str]) -> None:
    with source_only():
        other = threading.Thread(target=asked)
        other.start()
        other.join()
        assert compiled == ["code"]
        assert asked() == b""
