"""The file of tensors that Hugging Face's models have: a header in JSON, and the tensors behind it.

The libraries that read it are installed beside a peer, not beside Collage, so the few lines are here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write float32 tensors in the format safetensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            stream.write(np.ascontiguousarray(array, np.float32).data)


def read_tensors(path: Path) -> dict[str, Array]:
    """The tensors of such a file, which is mapped."""
    with open(path, "rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(size))
    header.pop("__metadata__", None)
    raw = np.memmap(path, np.uint8, "r", offset=8 + size)
    return {
        name: raw[slice(*about["data_offsets"])].view(np.float32).reshape(about["shape"])
        for name, about in header.items()
    }
