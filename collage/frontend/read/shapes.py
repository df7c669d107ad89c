"""Shapes and types of a model's values: those that the user fixes, and those that onnx infers."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from collage.core.memory import physical_bytes
from collage.core.printable import printable
from collage.errors import ModelError, UsageError, refuse_fixed, unknown_names
from collage.frontend.read.apart import without_weights
from collage.frontend.read.scopes import all_nodes, bodies

log = logging.getLogger(__name__)

Shapes = Mapping[str, Sequence[int]]

_OVERRIDABLE_SINCE_IR = 4
_GUESS_IMAGE = 224
_GUESS_LENGTH = 128


def model_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller must give: the graph's inputs that are no initializers."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [each for each in model.graph.input if each.name not in initializers]


def fixed_inputs(model: onnx.ModelProto) -> list[str]:
    """The inputs that are initializers, too, and whose values a caller may choose in ONNX. Here they are fixed.

    Before IR version 4 every initializer had to be an input, and none was meant to be chosen.
    """
    if model.ir_version < _OVERRIDABLE_SINCE_IR:
        return []
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [each.name for each in model.graph.input if each.name in initializers]


def declared_types(model: onnx.ModelProto) -> tuple[onnx.ValueInfoProto, ...]:
    """Copies of what the model says of its outputs and inner values. It may be wrong."""
    return copied((*model.graph.output, *model.graph.value_info))


def copied(infos: Iterable[onnx.ValueInfoProto]) -> tuple[onnx.ValueInfoProto, ...]:
    """Copies of types, which stay as they are when the model is changed in place."""
    return tuple(onnx.ValueInfoProto.FromString(info.SerializeToString()) for info in infos)


def check_sets(model: onnx.ModelProto, sets: Sequence[Shapes]) -> None:
    """Raise UsageError if there are no sets of shapes, if one does not fit the model, or if two are the same."""
    if not sets:
        raise UsageError("give at least one set of shapes.")
    seen: list[onnx.ModelProto] = []
    for shapes in sets:
        inputs = onnx.ModelProto()  # a model that has the same inputs and nothing else
        inputs.graph.input.extend(model.graph.input)
        inputs.graph.initializer.extend(onnx.TensorProto(name=each.name) for each in model.graph.initializer)
        fix_shapes(inputs, chosen_shapes(inputs, shapes, strict=True).placed)
        if inputs in seen:
            text = " ".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
            raise UsageError(f"two sets of shapes are the same: {text}.")
        seen.append(inputs)


def fix_shapes(model: onnx.ModelProto, shapes: Shapes) -> None:
    """Write ``shapes`` (elements per axis) into the inputs of the caller's model, in place, and what follows from them.

    Declared types of inner values are dropped, and those of outputs are inferred again, since they may be wrong. Raises
    UsageError for unknown names, a wrong rank, a clash with a static dimension, and a dimension that stays symbolic
    (with a flag for each such input), and ModelError for a shape that does not fit into memory.
    """
    inputs = model_inputs(model)
    refuse_fixed(shapes, fixed_inputs(model))
    unknown = set(shapes) - {each.name for each in inputs}
    if unknown:
        raise unknown_names("input in the given shapes", unknown, [each.name for each in inputs])
    for each in inputs:
        if each.name in shapes:
            _write(each, tuple(shapes[each.name]))
    if not all(map(_is_static, inputs)):
        raise UsageError(
            f"these inputs have no fixed shape: {open_text(model)}. Give one for each, for example: "
            f"{shape_flags(model)} (sizes to be replaced by yours; shapes={{name: sizes}} in Python)."
        )
    _refuse_huge(model.graph.input)
    _drop_inner_types(model)
    _infer_outputs(model)
    _refuse_huge(model.graph.output)


def with_batch(model: onnx.ModelProto, shapes: Shapes, batch: int | None) -> dict[str, Sequence[int]]:
    """``shapes``, and those of other inputs whose first axis is open, which has ``batch`` elements then.

    An input that leaves more than its first axis open has no shape yet: its first axis is fixed in place. Raises
    UsageError if no input's first axis is open, and that of some has another number of elements, or if a given shape
    has another number of them.
    """
    found = {**shapes}
    fixed: dict[str, int] = {}
    names: dict[str, int] = {}
    for info in model_inputs(model) if batch is not None else ():
        dims = info.type.tensor_type.shape.dim
        if not dims:
            continue
        _name(info, dims[0], [*shapes.get(info.name, ()), batch or 0][0], names)
        if info.name in shapes:
            continue
        if dims[0].HasField("dim_value") and dims[0].dim_value >= 0:
            fixed[info.name] = dims[0].dim_value
            continue
        dims[0].dim_value = batch or 0
        fixed[info.name] = dims[0].dim_value
        if _is_static(info):
            found[info.name] = [each.dim_value for each in dims]
    if fixed and batch not in fixed.values():
        listing = ", ".join(f"{name} has {count}" for name, count in fixed.items())
        raise UsageError(f"the batch is fixed in the model, so that it cannot be {batch}: {listing}.")
    return found


@dataclass(frozen=True)
class ChosenShapes:
    """The shapes that a model is placed for, and those that it is measured on because it stays open."""

    placed: dict[str, Sequence[int]]
    """Elements per axis of the inputs, by name."""
    sizes: dict[str, Sequence[int]]
    """The same of inputs that stay open. There are none if all inputs are in ``placed``, or static."""
    for_one: tuple[str, ...] = ()
    """Inputs whose first axis, open in the model, has one element in ``placed``."""


def chosen_shapes(model: onnx.ModelProto, shapes: Shapes, *, strict: bool = False) -> ChosenShapes:
    """Choose shapes for the inputs that the model leaves open, beside those that are given.

    A dimension that is given for one input holds for all inputs that name it. If no shape is given, a first axis that
    is open is placed for one element. If other axes are open as well, the model stays open and is measured on sizes
    that are usual for its inputs; with ``strict`` nothing is chosen then. Raises UsageError for a name with two sizes.
    """
    placed = {**shapes}
    names: dict[str, int] = {}
    opened = []
    for info in model_inputs(model):
        if info.name in shapes:
            for each, extent in zip(_dims(info), shapes[info.name], strict=False):
                _name(info, each, extent, names)
        elif not _is_static(info):
            opened.append(info)
    left = []
    for info in opened:
        found = [names.get(each.dim_param, -1) if _is_open(each) else each.dim_value for each in _dims(info)]
        if found and -1 not in found:
            placed[info.name] = found
        else:
            left.append(info)
    if not left or shapes or not all(map(_dims, left)):
        return ChosenShapes(placed, {})
    if not any(_is_open(each) for info in left for each in _dims(info)[1:]):
        ones = {info.name: [1, *(each.dim_value for each in _dims(info)[1:])] for info in left}
        return ChosenShapes(placed | ones, {}, tuple(ones))
    if strict:
        return ChosenShapes(placed, {})
    return ChosenShapes(placed, _sizes(left, names))


def _name(info: onnx.ValueInfoProto, dim: onnx.TensorShapeProto.Dimension, extent: int, names: dict[str, int]) -> None:
    """Note the size of a dimension by its name. Raises UsageError if another input has another size of that name."""
    if dim.dim_param and names.setdefault(dim.dim_param, extent) != extent:
        raise UsageError(
            f"{printable(info.name)} has {printable(dim.dim_param)} = {extent}, and another input "
            f"{names[dim.dim_param]}: the model has one size of that name. Give both the same."
        )


def _sizes(inputs: Iterable[onnx.ValueInfoProto], names: dict[str, int]) -> dict[str, Sequence[int]]:
    """Usual sizes of inputs, in which dimensions of one name are equal. ``names`` has those that are known."""
    return {
        info.name: [
            names.setdefault(each.dim_param, size) if each.dim_param and _is_open(each) else size
            for each, size in zip(_dims(info), _usual_sizes(info), strict=True)
        ]
        for info in inputs
    }


def leave_open(model: onnx.ModelProto) -> None:
    """Drop the declared types of inner values, and infer those of outputs, in place: they may be wrong."""
    _drop_inner_types(model)
    _infer_outputs(model)


def open_text(model: onnx.ModelProto) -> str:
    """The inputs with open dimensions and their shapes, for people: ``input_ids: batch x sequence``."""
    return "; ".join(f"{each.name}: {shape_text(each)}" for each in model_inputs(model) if not _is_static(each))


def shape_flags(model: onnx.ModelProto) -> str:
    """An example of ``--shape`` for each input that the model leaves open."""
    symbolic = [each for each in model_inputs(model) if not _is_static(each)]
    texts = [f"{name}:{'x'.join(map(str, sizes)) or '1'}" for name, sizes in _sizes(symbolic, {}).items()]
    return " ".join(f"--shape {shlex.quote(text)}" for text in texts)


def _dims(info: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return [*info.type.tensor_type.shape.dim]


def _is_open(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return not dim.HasField("dim_value") or dim.dim_value < 0


def fitting(model: onnx.ModelProto, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The shapes (elements per axis) of inputs that the model leaves open, and whose fixed dimensions they have."""
    found = {}
    for each in model_inputs(model):
        if each.name not in shapes or _is_static(each):
            continue
        shape = tuple(shapes[each.name])
        dims = each.type.tensor_type.shape.dim
        fits = all(d.dim_value in (0, extent) for d, extent in zip(dims, shape, strict=False))
        if len(dims) in (0, len(shape)) and fits and -1 not in shape:
            found[each.name] = shape
    return found


def infer_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write the types of values that onnx infers into the caller's model, in place. Returns the same model."""
    bare = _inferred_or_none(model)
    if bare is None:
        return model
    del model.graph.value_info[:]
    model.graph.value_info.extend(bare.graph.value_info)
    outputs = {info.name: info for info in bare.graph.output}
    for info in model.graph.output:
        info.CopyFrom(outputs[info.name])
    return model


def inferred(model: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """A copy without large weights, with the types that onnx infers, which are checked where that is ``strict``.

    Large weights are left out since onnx serialises the model, which is limited to 2 GiB. Raises what onnx raises.
    """
    bare = without_weights(model)
    return onnx.shape_inference.infer_shapes(bare, check_type=strict, strict_mode=strict, data_prop=True)


def _inferred_or_none(model: onnx.ModelProto) -> onnx.ModelProto | None:
    try:
        return inferred(model)
    except (onnx.shape_inference.InferenceError, UnicodeDecodeError, MemoryError, RuntimeError) as error:
        log.warning("ONNX shape inference failed: %s", error)
        return None


def _drop_inner_types(model: onnx.ModelProto) -> None:
    """Drop the types that are declared of inner values, also in bodies and functions."""
    nodes = all_nodes(model.graph)
    for function in model.functions:
        for node in function.node:
            nodes += [node, *(each for body in bodies(node) for each in all_nodes(body))]
    for each in (model.graph, *model.functions, *(body for node in nodes for body in bodies(node))):
        del each.value_info[:]


def _infer_outputs(model: onnx.ModelProto) -> None:
    """Write the types of outputs that onnx infers. Those of which it infers no shape keep what is declared.

    The ends of bodies are the same, but their shapes are dropped where they are inferred.
    """
    outputs, ends = model.graph.output, _ends(model.graph)
    made, declared = copied(outputs), copied(ends)
    for info in outputs:
        info.ClearField("type")
    for info in ends:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    bare = _inferred_or_none(model)
    known = [False] * len(ends) if bare is None else [*map(_is_known, _ends(bare.graph))]
    for info, was, is_known in zip(ends, declared, known, strict=True):
        if not is_known:
            info.CopyFrom(was)
    if bare is not None and not all(known):
        bare = _inferred_or_none(model)
    found = made if bare is None else bare.graph.output
    for info, new, was in zip(outputs, found, made, strict=True):
        info.CopyFrom(new if _is_known(new) else was)


def _ends(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The outputs of all bodies, and the inputs of those of Scan, in an order of their own.

    ONNX Runtime needs the shapes that the body of a Loop declares of its inputs.
    """
    return [
        info
        for node in all_nodes(graph)
        for body in bodies(node)
        for info in (*body.output, *(body.input if node.op_type == "Scan" else ()))
    ]


def _is_known(info: onnx.ValueInfoProto) -> bool:
    """Whether it has a type, and a tensor a shape."""
    kind = info.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or info.type.tensor_type.HasField("shape"))


def _refuse_huge(infos: Iterable[onnx.ValueInfoProto]) -> None:
    """Raise ModelError for a shape that does not fit into memory. Shape inference may visit its elements, too."""
    most = physical_bytes()
    for info in infos:
        size = 1
        for dim in info.type.tensor_type.shape.dim:
            size *= max(dim.dim_value, 1)
        if size > most:
            raise ModelError(
                f"{printable(info.name)} has the shape {shape_text(info)}: that is more than this machine's "
                f"{most >> 30} GiB of memory. Fix smaller shapes with --shape (shapes= in Python), or export the model "
                "with smaller ones."
            )


def _write(info: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    if any(extent < 0 for extent in shape):
        raise UsageError(f"shape {shape} of input {info.name} has a negative dimension.")
    proto = info.type.tensor_type.shape
    if info.type.tensor_type.HasField("shape"):
        if len(proto.dim) != len(shape):
            raise UsageError(
                f"input {info.name} has {len(proto.dim)} dimensions ({shape_text(info)}), the given shape "
                f"{'x'.join(map(str, shape))} has {len(shape)}."
            )
        for dim, extent in zip(proto.dim, shape, strict=True):
            if dim.HasField("dim_value") and dim.dim_value > 0 and dim.dim_value != extent:
                raise UsageError(
                    f"input {info.name} is {shape_text(info)} in the model; {'x'.join(map(str, shape))} does not fit "
                    "its fixed dimensions. --shape (shapes= in Python) gives sizes to symbolic dimensions only; for "
                    "another size, export the model again."
                )
    del proto.dim[:]
    for extent in shape:
        proto.dim.add().dim_value = extent
    if not shape:
        info.type.tensor_type.shape.SetInParent()


def _is_static(info: onnx.ValueInfoProto) -> bool:
    if info.type.WhichOneof("value") != "tensor_type":
        return True  # sequences and optionals have no shape to fix
    tensor = info.type.tensor_type
    return tensor.HasField("shape") and all(d.HasField("dim_value") and d.dim_value >= 0 for d in tensor.shape.dim)


def shape_text(info: onnx.ValueInfoProto) -> str:
    """The tensor's shape for people: ``1x3x?x?``, or ``batch x 3`` if dimensions have names."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return "unknown rank"
    names = [d.dim_param or "?" if _is_open(d) else str(d.dim_value) for d in tensor.shape.dim]
    return (" x " if any(d.dim_param for d in tensor.shape.dim) else "x").join(names)


def _usual_sizes(info: onnx.ValueInfoProto) -> list[int]:
    """Sizes that inputs of this rank have in many models, where its own are open."""
    dims = _dims(info)
    sizes: list[int] = []
    for axis, dim in enumerate(dims):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            sizes.append(dim.dim_value)
        elif axis == 0:
            sizes.append(1)
        elif len(dims) >= 4:
            sizes.append(3 if axis == 1 else _GUESS_IMAGE)
        else:
            sizes.append(_GUESS_LENGTH)
    return sizes
