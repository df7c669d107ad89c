"""The recipe of a workload's file, which is in its metadata. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

RECIPE = "collage_recipe"  # the key in the model's metadata


@dataclass(frozen=True)
class Recipe:
    """The things that a file's content depends on. A file with an equal recipe need not be written again."""

    workload: str
    small: bool
    batch: int
    torch: str  # version
    source: str  # digest

    def __str__(self) -> str:
        size = "small" if self.small else "full"
        return f"{self.workload} {size} batch={self.batch} torch={self.torch} source={self.source}"


def parse_recipe(text: str) -> Recipe | None:
    """The inverse of ``str``. None for a text that is no recipe."""
    try:
        workload, size, *pairs = text.split()
        fields = dict(pair.split("=", 1) for pair in pairs)
        return Recipe(workload, size == "small", int(fields["batch"]), fields["torch"], fields["source"])
    except (ValueError, KeyError):
        return None


def read_recipe(path: Path) -> Recipe | None:
    """The recipe that a file was written by. None where there is no file, or it has no recipe."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # a missing, cut or foreign file: protobuf's error class is private
        return None
    return next((parse_recipe(entry.value) for entry in model.metadata_props if entry.key == RECIPE), None)
