"""Compiling one model for several sets of input shapes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx

from collage.compiler.clock import Budget, share_of
from collage.core.deadline import Deadline
from collage.errors import UsageError
from collage.frontend.model_artifacts import fits_an_artifact
from collage.frontend.original import AsLoaded
from collage.frontend.read.load import ModelSource, load_onnx
from collage.frontend.read.shapes import Shapes, fix_shapes
from collage.frontend.read.weights import WeightFiles
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.report.best_so_far import INTERRUPT
from collage.runtime.original import Fallback

log = logging.getLogger(__name__)


class Compile(Protocol):
    """Compiles a model for one set of shapes."""

    def __call__(
        self, model: ModelSource, *, shapes: Mapping[str, Sequence[int]], budget_s: float | Budget | None
    ) -> CompiledModule: ...


def compile_each(
    source: ModelSource, sets: Sequence[Shapes], strict: bool, compile: Compile, budget_s: float | None = None
) -> ShapedModule:
    """A module with a placement for each set of shapes.

    Each set has the same share of ``budget_s`` seconds, and of what the sets before it have left. After Ctrl-C the
    other sets get their first modules. Calls with other shapes run the original model on ONNX Runtime, unless
    ``strict``. All sets are checked before anything is measured. Raises UsageError for no sets or equal ones, and what
    ``compile`` raises.
    """
    if not sets:
        raise UsageError("give at least one set of shapes.")
    with WeightFiles() as files:
        return _compile_each(source, load_onnx(source, files), sets, strict, compile, budget_s)


def _compile_each(
    source: ModelSource,
    original: onnx.ModelProto,
    sets: Sequence[Shapes],
    strict: bool,
    compile: Compile,
    budget_s: float | None,
) -> ShapedModule:
    fixed = [_inputs_of(original) for _ in sets]
    for proto, shapes in zip(fixed, sets, strict=True):
        fix_shapes(proto, shapes)
    seen = [proto.SerializeToString(deterministic=True) for proto in fixed]
    for number, each in enumerate(seen):
        if each in seen[:number]:
            text = " ".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in sets[number].items())
            raise UsageError(f"two sets of shapes are the same: {text}.")
    modules: list[CompiledModule] = []
    course = Deadline()
    for number, shapes in enumerate(sets):
        interrupted = any(each.report.ended == INTERRUPT for each in modules)
        share = share_of(budget_s, course, len(sets) - number, interrupted=interrupted)
        modules.append(compile(source, shapes=shapes, budget_s=share))
    fallback = None
    if not strict:
        if fits_an_artifact(original):
            program = modules[0].program
            threads = modules[0].report.threads
            fallback = Fallback(
                AsLoaded.of(original).serialised(), program.model_inputs, program.model_outputs, threads
            )
        else:
            log.warning(
                "the model's constants have 2 GiB or more, which one ONNX file cannot hold: calls with other shapes "
                "will be errors"
            )
    return ShapedModule(modules, fallback)


def _inputs_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that has the same inputs and nothing else."""
    found = onnx.ModelProto()
    found.graph.input.extend(model.graph.input)
    found.graph.initializer.extend(onnx.TensorProto(name=tensor.name) for tensor in model.graph.initializer)
    return found
