"""Importing TVM in processes of our own, in less than half of the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from types import ModuleType
from typing import cast


@contextmanager
def lean_imports(*, of_tvm: bool = True) -> Iterator[None]:
    """Import TVM in less than half of the time: without PyTorch, and without garbage collections meanwhile.

    TVM takes no tensors of a PyTorch that is imported afterwards, so this is not for a user's process. The functions of
    TVM's library are listed once, and not for each of its modules. ``of_tvm``: whether TVM is among the imports.
    """
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = cast(ModuleType, None)  # an import raises ImportError then
    collected = gc.isenabled()
    gc.disable()
    try:
        with _names_listed_once() if of_tvm else nullcontext():
            yield
    finally:
        if hidden:
            del sys.modules["torch"]
        if collected:
            gc.enable()


@contextmanager
def _names_listed_once() -> Iterator[None]:
    if {"tvm", "tvm_ffi"} & set(sys.modules):  # or they are being imported just now
        yield
        return
    try:
        from tvm_ffi import registry

        usual = registry.list_global_func_names
    except Exception:  # it is missing or another version: importing TVM tells, or does without this
        yield
        return
    registry.list_global_func_names = cache(usual)
    try:
        yield
    finally:
        registry.list_global_func_names = usual
