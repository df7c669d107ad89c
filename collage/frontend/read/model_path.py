"""Whether there is a file at a model's path: quick to ask, before anything is imported that reads it."""

from __future__ import annotations

from pathlib import Path

from collage.errors import ModelError


def check_model_path(path: Path) -> None:
    """Raise ModelError if there is no regular file."""
    if path.is_dir():
        raise ModelError(f"{path} is a directory; give the .onnx file in it.")
    if not path.exists() and str(path) == "-":
        raise ModelError("a model is read from a file, not from a stream: give the path of an ONNX file, not -.")
    if not path.exists():
        raise ModelError(f"no such file: {path}. Check the path of the ONNX model.")
    if not path.is_file():  # to read a pipe may take for ever
        raise ModelError(f"{path} is no regular file; give the path of an ONNX file.")
