"""What a workload's file was made of, as its metadata tell. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

RECIPE = "collage_recipe"  # the key in the model's metadata


@dataclass(frozen=True)
class Recipe:
    """All that a file's content depends on; equal recipes mean the file need not be written again."""

    workload: str
    small: bool
    batch: int
    torch: str  # version
    source: str  # digest

    def __str__(self) -> str:
        size = "small" if self.small else "full"
        return f"{self.workload} {size} batch={self.batch} torch={self.torch} source={self.source}"


def parse_recipe(text: str) -> Recipe | None:
    """The inverse of ``str``; None for what is no recipe."""
    try:
        workload, size, *pairs = text.split()
        fields = dict(pair.split("=", 1) for pair in pairs)
        return Recipe(workload, size == "small", int(fields["batch"]), fields["torch"], fields["source"])
    except (ValueError, KeyError):
        return None


def read_recipe(path: Path) -> Recipe | None:
    """The recipe a file was written by; None where there is no file, or one of other making."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # a missing, cut or foreign file: protobuf's error class is private
        return None
    return next((parse_recipe(entry.value) for entry in model.metadata_props if entry.key == RECIPE), None)
