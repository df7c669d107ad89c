"""Writing decoders as ONNX files, with large weights in a file beside them."""

from __future__ import annotations

from pathlib import Path

import onnx

from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small

_BESIDE_ABOVE = 200_000_000
"""Decoders with more weights have these in a file of their own: an ONNX file holds 2 GiB."""


def write_decoder(name: str, folder: Path, tiny: bool) -> Path:
    """Write one of the named decoders with seed 0, made tiny for tests where that is asked for.

    Raises OSError when it cannot be written.
    """
    shape = small(NAMED[name]) if tiny else NAMED[name]
    path = folder / f"{name}.onnx"
    beside = folder / f"{name}.bin" if shape.parameters > _BESIDE_ABOVE else None
    onnx.save_model(decoder(shape, beside=beside), str(path))
    return path
