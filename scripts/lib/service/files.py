"""Loading module files of one placement."""

from __future__ import annotations

from pathlib import Path

import collage
from collage.errors import UsageError
from collage.module.shaped import ShapedModule


def load_one(file: Path, *, share: bool = True) -> collage.CompiledModule:
    """Load a module of one set of shapes. Raises UsageError for several sets, and what ``collage.load`` raises."""
    module = collage.load(file, share=share)
    if isinstance(module, ShapedModule):
        raise several(file)
    return module


def several(file: Path) -> UsageError:
    """The error for a file with several sets of shapes."""
    return UsageError(f"{file} is for several sets of shapes: compile the model for one of them.")
