"""ONNX models as artifacts: one protobuf or, if weights are large, a protobuf that refers to arrays beside it.

The second kind has no limit of 2 GiB, and its weights are in the memory of a file that several processes map.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.graph.dataflow import Array
from collage.kernel.frames import Artifact, Buffer, Framed, head_of, is_framed, parts_of, pieces_of

KIND = "onnx"


def model_artifact(model: Artifact) -> bytes | Framed:
    """The model as an engine takes it: its bytes, or its parts if its weights are apart."""
    if isinstance(model, Framed):
        return model
    return parts_of(model) if is_framed(model) else bytes(model)


def apart(model: bytes, weights: Sequence[tuple[str, str, Sequence[int]]], arrays: Sequence[Buffer]) -> Framed:
    """An artifact of a model that refers to weights (name, dtype and shape) and of their arrays, in the same order."""
    head = head_of(KIND, {"weights": weights}, [model, *arrays])
    return Framed(head, (model, *arrays), mapped=True)


def joined(model: bytes | Framed) -> bytes:
    """The artifact in one piece, which ``model_artifact`` takes apart again."""
    return b"".join(pieces_of(model.head, model.arrays)) if isinstance(model, Framed) else model


def protobuf(model: bytes | Framed) -> bytes:
    """The protobuf, which has no large weights if these are apart."""
    return bytes(model.arrays[0]) if isinstance(model, Framed) else model


def weights_of(model: bytes | Framed) -> Mapping[str, Array]:
    """The weights that are apart, by name. The arrays are no copies. Raises ValueError if they do not fit."""
    if not isinstance(model, Framed):
        return {}
    found = {}
    for (name, dtype, shape), data in zip(_described(model), model.arrays[1:], strict=True):
        found[name] = np.frombuffer(data, dtype).reshape(shape)
    return found


def _described(model: Framed) -> list[Any]:
    header = model.header
    if header.get("kind") != KIND or not isinstance(header.get("weights"), list):
        raise ValueError("it is no model")
    found: list[Any] = header["weights"]
    return found


def hashed(model: bytes | Framed) -> hashlib._Hash:
    """A SHA-256 object that has hashed the model, weights and all."""
    if not isinstance(model, Framed):
        return hashlib.sha256(model)
    found = hashlib.sha256(model.head)
    for each in model.arrays:
        found.update(each)
    return found
