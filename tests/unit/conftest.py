"""The rule of this tier: its tests start no process and import no TVM, so that all of them take less than a minute."""

from __future__ import annotations

import builtins
import os
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_import = builtins.__import__


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("tests/unit starts no process; this test belongs in tests/compile or tests/slow")


def _import_all_but_tvm(name: str, *about: Any, **named: Any) -> Any:
    if name.partition(".")[0] in ("tvm", "tvm_ffi"):
        raise AssertionError("tests/unit imports no TVM; this test belongs in tests/compile or tests/slow")
    return _import(name, *about, **named)


@contextmanager
def _ruled() -> Iterator[None]:
    """Inside, starting a process and importing TVM fail, also if TVM is imported already."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system"):
            patch.setattr(os, name, _refuse)
        patch.setattr(subprocess.Popen, "__init__", _refuse)
        patch.setattr(builtins, "__import__", _import_all_but_tvm)
        yield


@pytest.fixture(autouse=True)
def rule() -> Iterator[None]:
    with _ruled():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Test files are imported under the rule, too."""
    with _ruled():
        return (yield)
