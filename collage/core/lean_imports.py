"""Importing TVM in processes of our own, in less than half of the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import cast


@contextmanager
def lean_imports() -> Iterator[None]:
    """Import TVM without PyTorch, and without garbage collections meanwhile.

    TVM's interface to Python imports PyTorch where it is installed, to exchange tensors with it. That takes longer than
    all else that Collage imports, and Collage exchanges none. Afterwards PyTorch can be imported as ever, but TVM does
    not take its tensors as they are. So this is for the command line and for workers, not for a user's process.
    """
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = cast(ModuleType, None)  # an import raises ImportError then
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torch"]
        if collected:
            gc.enable()
