"""Indices are looked at before a run, also where an engine runs the model: not every one of them does."""

from __future__ import annotations

from dataclasses import replace

import onnx

from collage.frontend.index_limits import index_limits
from collage.module.module import CompiledModule


def checking_indices(module: CompiledModule, model: onnx.ModelProto) -> CompiledModule:
    """The module, whose inputs are checked against what they index in the model that it was made of."""
    tail = module.program.tail
    if tail is None:
        return module
    limits = index_limits(model)
    inputs = tuple(replace(port, rows=limits.get(port.name)) for port in tail.inputs)
    program = replace(module.program, tail=replace(tail, inputs=inputs))
    return CompiledModule(replace(module.parts, program=program), module.report, module.executor)
