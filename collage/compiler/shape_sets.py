"""Compiling one model for several sets of input shapes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx

from collage.backends.onnx_engine import MAX_BYTES
from collage.errors import UsageError
from collage.frontend.load import ModelSource, load_onnx
from collage.frontend.shapes import Shapes, fix_shapes
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.runtime.fallback import Fallback

log = logging.getLogger(__name__)


class Compile(Protocol):
    """Compiles a model for one set of shapes."""

    def __call__(self, model: ModelSource, *, shapes: Mapping[str, Sequence[int]]) -> CompiledModule: ...


def compile_each(source: ModelSource, sets: Sequence[Shapes], strict: bool, compile: Compile) -> ShapedModule:
    """A placement for each set of shapes; for others the original model as a fallback, unless ``strict``.

    All sets are looked at before anything is measured. Raises UsageError, and what ``compile`` does.
    """
    if not sets:
        raise UsageError("give at least one set of shapes.")
    original = load_onnx(source)
    fixed = [_inputs_of(original) for _ in sets]
    for proto, shapes in zip(fixed, sets, strict=True):
        fix_shapes(proto, shapes)
    seen = [proto.SerializeToString(deterministic=True) for proto in fixed]
    for number, each in enumerate(seen):
        if each in seen[:number]:
            text = " ".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in sets[number].items())
            raise UsageError(f"two sets of shapes are the same: {text}.")
    modules = [compile(source, shapes=shapes) for shapes in sets]
    fallback = None
    if not strict:
        if original.ByteSize() < MAX_BYTES:
            program = modules[0].program
            threads = modules[0].report.threads
            fallback = Fallback(
                original.SerializeToString(), program.model_inputs, program.model_outputs, threads
            )
        else:
            log.warning(
                "the model has 2 GiB or more, which one ONNX file cannot hold: calls with other shapes will be errors"
            )
    return ShapedModule(modules, fallback)


def _inputs_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with the same inputs and nothing else."""
    found = onnx.ModelProto()
    found.graph.input.extend(model.graph.input)
    found.graph.initializer.extend(onnx.TensorProto(name=tensor.name) for tensor in model.graph.initializer)
    return found
