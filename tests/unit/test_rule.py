"""The rule of this tier holds (see ``conftest.py``)."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest


def test_no_process_is_started() -> None:
    start = multiprocessing.get_context("fork").Process().start
    for act in (os.fork, start, lambda: subprocess.run([sys.executable, "-c", ""])):
        with pytest.raises(AssertionError, match="starts no process"):
            act()


def test_tvm_is_not_imported() -> None:
    with pytest.raises(AssertionError, match="imports no TVM"):
        import tvm  # noqa: F401
