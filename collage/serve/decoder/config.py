"""A decoder's folder: which ONNX file is in it, and what ``config.json`` says of sequences that the file does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.core.typed import shown
from collage.errors import CollageError, ModelError
from collage.serve.tokenizer import end_tokens_in, read_json

_SUFFIX = ".onnx"
_INNER = "onnx"
"""The folder within a model's, in which some exporters put the ONNX files."""
_POSITIONS = "max_position_embeddings n_positions max_seq_len seq_length n_ctx".split()
_ORIGINAL = "original_max_position_embeddings"
_BY_LENGTH = ("dynamic", "longrope", "su")
"""Rotary positions whose angles depend on the sequence's length. An exported graph has those of short sequences."""


@dataclass(frozen=True)
class DecoderConfig:
    """The number of positions of a model, or None if it is not known, and the tokens that end an answer."""

    positions: int | None = None
    end_tokens: tuple[int, ...] = ()


def decoder_file(path: Path) -> Path:
    """The ONNX file in a folder, or the path itself if it is no folder. Raises ModelError if not just one is there."""
    if not path.is_dir():
        return path
    found = sorted(path.glob(f"*{_SUFFIX}")) or sorted((path / _INNER).glob(f"*{_SUFFIX}"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise ModelError(f"there is no *{_SUFFIX} in {path} nor in {path / _INNER}: give the decoder's ONNX file.")
    names = ", ".join(str(each.relative_to(path)) for each in found)
    raise ModelError(f"{path} has several ONNX files ({names}): give the path of one of them.")


def read_config(file: Path) -> DecoderConfig:
    """What is said beside the decoder's file, or in the folder above if the file is in ``onnx/``.

    Raises CollageError for files that cannot be read.
    """
    folder = file.absolute().parent  # of the link, if it is one
    if folder.name == _INNER and not (folder / "config.json").exists():
        folder = folder.parent
    file = folder / "config.json"
    return DecoderConfig(_positions(file, read_json(file)), end_tokens_in(folder))


def _positions(file: Path, config: Mapping[str, Any]) -> int | None:
    inner = config.get("text_config")  # of models that take more than texts
    if isinstance(inner, dict):
        config = {**config, **inner}
    found = [number for name in _POSITIONS if (number := _number(file, config, name))]
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) in _BY_LENGTH:
        original = _number(file, rope, _ORIGINAL) or _number(file, config, _ORIGINAL)
        found = [original] if original else found
    return found[0] if found else None


def _number(file: Path, config: Mapping[str, Any], name: str) -> int | None:
    """A number of positions, None if it is not there. Raises CollageError for what is none."""
    found = config.get(name)
    if found is None or (isinstance(found, int) and found > 0):
        return found
    raise CollageError(f"{file} says that {name} is {shown(found)}: correct that, or remove it.")
