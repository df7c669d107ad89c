"""ONNX models as artifacts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from collage.errors import ModelError
from collage.frontend.engine_models import TOO_LARGE
from collage.frontend.read.apart import MOST_INSIDE, has_files, inner_bytes, load_model
from collage.frontend.read.proto_size import is_serialisable
from collage.frontend.read.scopes import reads, set_all
from collage.frontend.read.weights import SUFFIX, is_apart, mapped, refer
from collage.kernel.frames import Framed
from collage.kernel.model_artifact import apart


def fits_an_artifact(model: onnx.ModelProto) -> bool:
    """Whether there can be an artifact of the model: what is not in files is less than 2 GiB."""
    return inner_bytes(model) < MOST_INSIDE if has_files(model) else is_serialisable(model)


def artifact_of(model: onnx.ModelProto) -> bytes | Framed:
    """The model as an artifact. Weights that are in files are apart, and are not copied.

    Raises ModelError for a model of 2 GiB or more that has none in files.
    """
    if not fits_an_artifact(model):
        raise ModelError(TOO_LARGE)
    if not has_files(model):
        data: bytes = model.SerializeToString(deterministic=True)
        return data
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _drop_unread(copy.graph)
    described: list[tuple[str, str, list[int]]] = []
    arrays: list[memoryview] = []
    for tensor in copy.graph.initializer:
        if is_apart(tensor):
            array = mapped(tensor)
            arrays.append(memoryview(array.reshape(-1).view(np.uint8).data))
            described.append((tensor.name, array.dtype.name, list(tensor.dims)))
            refer(tensor, "apart", 0, array.nbytes)
    return apart(copy.SerializeToString(deterministic=True), described, arrays)


def artifact_in(path: Path) -> bytes | Framed:
    """The artifact of a model that ``save_model`` has written to a folder of its own."""
    if any(path.parent.glob(f"*{SUFFIX}")):
        return artifact_of(load_model(path))
    return path.read_bytes()


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Leave out weights in files that nothing reads: ONNX Runtime takes none of those."""
    read = {name for node in graph.node for name in reads(node)} | {info.name for info in graph.output}
    unread = {each.name for each in graph.initializer if is_apart(each) and each.name not in read}
    for field in (graph.initializer, graph.input):
        if any(each.name in unread for each in field):
            set_all(field, [each for each in field if each.name not in unread])
