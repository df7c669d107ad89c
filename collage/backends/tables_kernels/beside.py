"""Models that the kernels take in part: ONNX Runtime runs what is before or after their program."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.onnxruntime import OnnxRuntime
from collage.backends.tables_kernels.build import Builder, build
from collage.backends.tables_kernels.session import OPERATORS, TableSession
from collage.backends.tables_kernels.soft import with_soft_trees
from collage.frontend import messages
from collage.frontend.messages import ModelProto, NodeProto, ValueInfoProto
from collage.kernel.kernel import Session
from collage.kernel.options import BuildOptions

_HEAVY = ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")
"""Operators that a program of a part of the model is worth while for."""


def session_of(model: ModelProto, options: BuildOptions, *, walk_all: bool) -> Session:
    """The model as a program, or a program beside a session of ONNX Runtime.

    A model with soft trees is taken as a whole. Raises UnsupportedError if no trees are in the program.
    """
    if (soft := with_soft_trees(model)) is not None:
        return TableSession(build(soft, OPERATORS, walk_all=walk_all), options.threads)
    whole = build(model, OPERATORS, walk_all=walk_all, partly=True)
    if not whole.left:
        return TableSession(whole, options.threads)
    if _has_trees(node for at, node in enumerate(model.graph.node) if at not in whole.left):
        return _after(model, whole, options)
    return _before(model, whole, options, walk_all=walk_all)


def _has_trees(nodes: Any) -> bool:
    return any(node.op_type in _HEAVY for node in nodes)


@dataclass(frozen=True)
class _Part:
    """A session, the values that it reads, and those that it makes."""

    session: Session
    reads: Sequence[str]
    makes: Sequence[str]


class _InTurn(Session):
    """Two parts of a model, one after the other."""

    def __init__(self, model: ModelProto, first: _Part, second: _Part) -> None:
        initializers = {each.name for each in model.graph.initializer}
        self._inputs = [each.name for each in model.graph.input if each.name not in initializers]
        self._outputs = [each.name for each in model.graph.output]
        self._parts = (first, second)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        values = dict(zip(self._inputs, inputs, strict=True))
        for part in self._parts:
            made = part.session.run([values[name] for name in part.reads])
            values.update(zip(part.makes, made, strict=True))
        return [values[name] for name in self._outputs]


def _after(model: ModelProto, builder: Builder, options: BuildOptions) -> Session:
    """The program first, and then what it does not take."""
    rest = [model.graph.node[at] for at in sorted(builder.left)]
    made = {name for node in rest for name in node.output}
    read = {name for node in rest for name in node.input}
    inputs = {port.name for port in builder.inputs}
    ends = [each.name for each in model.graph.output]
    known = {*builder.values, *builder.zipped}
    handed = sorted(((read | {*ends}) & known) - inputs - made)
    if not handed:
        raise UnsupportedError("ONNX Runtime would have to run all of the model")
    for name in handed:
        builder.add_output(name)
    types = {info.name: info for info in model.graph.input}
    types.update({port.name: _info(port.name, port.dtype, port.shape) for port in builder.outputs})
    reads = sorted(read & ({*handed} | inputs))
    part = _extracted(model, rest, [types[name] for name in reads], [each for each in ends if each in made])
    first = _Part(TableSession(builder, options.threads), [p.name for p in builder.inputs], handed)
    return _InTurn(model, first, _Part(_runtime(part, options), reads, [each for each in ends if each in made]))


def _before(model: ModelProto, builder: Builder, options: BuildOptions, *, walk_all: bool) -> Session:
    """What the program does not take first, with all that this reads, and then the program."""
    nodes = model.graph.node
    refused = {at for at in builder.left if at in builder.refused}
    producers = {name: at for at, node in enumerate(nodes) for name in node.output}
    taken, waiting = set(refused), [*refused]
    while waiting:
        for name in nodes[waiting.pop()].input:
            at = producers.get(name, -1)
            if at >= 0 and at not in taken:
                taken.add(at)
                waiting.append(at)
    first = [nodes[at] for at in sorted(taken)]
    rest = [node for at, node in enumerate(nodes) if at not in taken]
    if not _has_trees(rest):
        raise UnsupportedError(builder.refused[min(refused)])
    types = _types(model)
    read = {name for node in rest for name in node.input} | {each.name for each in model.graph.output}
    handed = sorted(read & {name for node in first for name in node.output})
    if not handed or not {*handed} <= types.keys():
        raise UnsupportedError("the types of values between ONNX Runtime and the kernels are not known")
    inputs = [each for each in model.graph.input if each.name not in {i.name for i in model.graph.initializer}]
    used = {name for node in rest for name in node.input}
    ends = [each.name for each in model.graph.output if each.name not in handed]
    reads = [each for each in inputs if each.name in used]
    second = _extracted(model, rest, [*reads, *(types[name] for name in handed)], ends)
    program = build(second, OPERATORS, walk_all=walk_all)
    before = _extracted(model, first, inputs, handed)
    needed = [each.name for each in before.graph.input]
    tables = _Part(TableSession(program, options.threads), [port.name for port in program.inputs], ends)
    return _InTurn(model, _Part(_runtime(before, options), needed, handed), tables)


def _types(model: ModelProto) -> dict[str, ValueInfoProto]:
    """The types of inner values, as far as the model has them or onnx infers them."""
    try:
        from onnx import shape_inference
    except ImportError:  # where only modules run
        found = model
    else:
        found = messages.parsed(shape_inference.infer_shapes(model.SerializeToString()))
    return {
        info.name: info for info in (*found.graph.value_info, *found.graph.output) if info.type.HasField("tensor_type")
    }


def _info(name: str, dtype: str, shape: Sequence[int]) -> ValueInfoProto:
    return messages.tensor_info(name, messages.NUMBERS[dtype], ("rows", *shape))


def _extracted(
    model: ModelProto, nodes: Sequence[NodeProto], inputs: Sequence[ValueInfoProto], outputs: Collection[str]
) -> ModelProto:
    """A model of these nodes. Outputs have no types, which engines infer."""
    found = messages.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    read = {name for node in nodes for name in node.input}
    for field in ("node", "input", "output", "value_info", "initializer"):
        graph.ClearField(field)
    graph.node.extend(nodes)
    graph.input.extend(each for each in inputs if each.name in read)
    graph.initializer.extend(each for each in model.graph.initializer if each.name in read)
    known = {each.name: each for each in model.graph.output}
    graph.output.extend(known.get(name) or messages.ValueInfoProto(name=name, type={}) for name in outputs)
    return found


def _runtime(model: ModelProto, options: BuildOptions) -> Session:
    return OnnxRuntime().session(model.SerializeToString(), BuildOptions(threads=options.threads))
