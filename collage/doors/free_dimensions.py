"""The dimensions that ONNX Runtime's session options fix."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
from onnx import helper

from collage.core.library_text import library_text

log = logging.getLogger(__name__)

_OUTPUTS = ("enable_profiling", "optimized_model_filepath")
"""Options that write a file for each session."""


def fix_free_dimensions(
    inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto], options: Any
) -> bool:
    """Write the sizes that ``options`` fix into a model's inputs and outputs, in place. Whether there are any.

    ``options`` are an ``onnxruntime.SessionOptions``, which has no call that gives the overrides back: a session of a
    model with these inputs is asked.
    """
    tensors = [each for each in inputs if each.type.WhichOneof("value") == "tensor_type"]
    opened = [dim for each in tensors for dim in each.type.tensor_type.shape.dim if not dim.HasField("dim_value")]
    if not opened:
        return False
    sizes = iter(_sizes(tensors, options))
    named: dict[str, int] = {}
    found = False
    for each in tensors:
        for dim, size in zip(each.type.tensor_type.shape.dim, next(sizes, ()), strict=False):
            if isinstance(size, int) and not dim.HasField("dim_value"):
                if dim.dim_param:
                    named[dim.dim_param] = size
                dim.dim_value, found = size, True
    for each in outputs:
        for dim in each.type.tensor_type.shape.dim:
            if dim.dim_param in named:
                dim.dim_value = named[dim.dim_param]
    return found


def _sizes(inputs: Sequence[onnx.ValueInfoProto], options: Any) -> list[list[int | str | None]]:
    """The shapes of inputs in a session with these options; none if there is no such session."""
    from onnxruntime import InferenceSession

    made = helper.make_node("Constant", [], ["made"], value_float=0.0)
    result = helper.make_tensor_value_info("made", onnx.TensorProto.FLOAT, [])
    model = helper.make_model(
        helper.make_graph([made], "inputs", inputs, [result]),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    try:
        with _without_files(options):
            session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [each.shape for each in session.get_inputs()]
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        log.warning("the session options fix no dimensions, since a session fails with them: %s", library_text(error))
        return []


@contextmanager
def _without_files(options: Any) -> Iterator[None]:
    """Sessions with the options write no files."""
    before = {name: getattr(options, name) for name in _OUTPUTS}
    try:
        for name, value in before.items():
            if value:
                setattr(options, name, type(value)())
        yield
    finally:
        for name, value in before.items():
            if value:
                setattr(options, name, value)
