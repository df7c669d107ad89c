"""The recipe of a workload's file, which is in its metadata. This module does not import torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

_KEY = "collage_recipe"


@dataclass(frozen=True)
class Recipe:
    """The things that a file's content depends on. A file with an equal recipe need not be written again."""

    workload: str
    small: bool
    batch: int
    torch: str  # version
    source: str  # digest

    def put_into(self, model: onnx.ModelProto) -> None:
        """Write the recipe into the model's metadata."""
        onnx.helper.set_model_props(model, {_KEY: json.dumps(asdict(self))})


def read_recipe(path: Path) -> Recipe | None:
    """The recipe that a file was written by. None if there is no file, or it has no recipe."""
    try:
        model = onnx.load(path, load_external_data=False)
        (text,) = (entry.value for entry in model.metadata_props if entry.key == _KEY)
        return Recipe(**json.loads(text))
    except Exception:  # a missing, cut or foreign file: protobuf's error class is private
        return None
