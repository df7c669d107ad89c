"""Keeps TVM from compiling the CUDA C++ that it generates, where only the source is wanted.

TVM compiles it at once where it finds the GPU's driver and CUDA's runtime. That takes longer than all else, and nobody
uses what comes out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import tvm_ffi

__all__ = ["COMPILE", "source_only"]

COMPILE = "tvm_callback_cuda_compile"
"""TVM's name for the function that compiles CUDA C++ to machine code."""

_wanted = ContextVar("source_only", default=False)


@contextmanager
def source_only() -> Iterator[None]:
    """Inside the block, and in this thread, TVM makes modules of the source alone. They cannot be run."""
    _replaced()
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


@cache
def _replaced() -> None:
    """Replace TVM's function, once, by one that does the same outside such blocks."""
    usual = tvm_ffi.get_global_func(COMPILE)

    def compile_unless_source_only(code: str) -> bytes:
        return b"" if _wanted.get() else usual(code)

    tvm_ffi.register_global_func(COMPILE, compile_unless_source_only, override=True)
