"""Changed ONNX files: other bits, attributes, shapes, types, names, edges, weights or versions."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import onnx
from onnx import TensorProto, helper

from scripts.lib.fuzzing.change_json import flip

_NUMBERS = (
    0, 1, -1, 2, 3, 7, 255, 1000, 65536, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, -(2**63), 2**63 - 1,
)  # fmt: skip
_FLOATS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), -float("inf"))
_NAMES = ("", "nobody", "\x1b[31mred", "a b", "x" * 300, "</script>", "name\nof two lines")
_LARGEST_BYTES = 200_000
"""The most bytes of a model that is changed. ONNX's tests have some of several MB, which would test nothing else."""


@cache
def originals() -> list[tuple[str, bytes]]:
    """Good models by name: operators from ONNX's own tests, and small networks."""
    from onnx.backend.test.case.node import collect_testcases

    from tests.helpers import models as ours

    found = [("conv_net", ours.conv_net()), ("elementwise", ours.elementwise_net())]
    found += [("positive_rows", ours.positive_rows()), ("detector", ours.detector())]
    found = found * 20 + sorted(
        ((case.name, case.model) for case in collect_testcases(None) if case.model is not None),
        key=lambda each: str(each[0]),
    )
    kept = [(name, model.SerializeToString()) for name, model in found]
    return [(name, data) for name, data in kept if len(data) <= _LARGEST_BYTES]


def change_model(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """The model with one or more changes, and a description of these."""
    if rng.random() < 0.3:
        return flip(data, rng), "bits"
    model = onnx.ModelProto.FromString(data)
    said = []
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        change = rng.choice(_CHANGES)
        try:
            said.append(f"{change.__name__[1:]} {change(model, rng)}")
        except (IndexError, ValueError, TypeError):  # there is nothing of that kind
            said.append("nothing")
    found: bytes = model.SerializeToString()
    if rng.random() < 0.05:
        found, text = _text(found, rng)
        said.append(text)
    return found, "; ".join(said)


def _text(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Replace a letter of a name with a byte that is no UTF-8."""
    letters = [i for i, byte in enumerate(data) if 97 <= byte <= 122]
    at = rng.choice(letters)
    return data[:at] + b"\xff" + data[at + 1 :], f"no UTF-8 at {at}"


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    found = []
    graphs = [model.graph]
    for graph in graphs:
        found += list(graph.node)
        graphs += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return found


def _attribute(model: onnx.ModelProto, rng: random.Random) -> str:
    node = rng.choice([node for node in _nodes(model) if node.attribute])
    attribute = rng.choice(node.attribute)
    before = str(attribute)[:60]
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice([*_NUMBERS, attribute.i + 1, -attribute.i])
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = rng.choice(_FLOATS)
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = rng.choice([b"", b"\xff\xfe", b"nothing", b"\x1b[31m", attribute.s + b"x"])
    elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        at = rng.randrange(len(attribute.ints))
        kind = rng.randrange(3)
        if kind == 0:
            attribute.ints[at] = rng.choice([*_NUMBERS, attribute.ints[at] + 1])
        elif kind == 1:
            del attribute.ints[at]
        else:
            attribute.ints.append(rng.choice(_NUMBERS))
    elif attribute.type == onnx.AttributeProto.TENSOR:
        _tensor(attribute.t, rng)
    else:
        attribute.type = rng.choice([1, 2, 3, 4, 6, 7, 8])
    return " ".join(f"{node.op_type} {before} -> {str(attribute)[:60]}".split())


def _no_attribute(model: onnx.ModelProto, rng: random.Random) -> str:
    node = rng.choice([node for node in _nodes(model) if node.attribute])
    at = rng.randrange(len(node.attribute))
    name = node.attribute[at].name
    del node.attribute[at]
    return f"{node.op_type} {name}"


def _new_attribute(model: onnx.ModelProto, rng: random.Random) -> str:
    node = rng.choice(_nodes(model))
    name = rng.choice(
        ["axis", "axes", "group", "kernel_shape", "strides", "to", "perm", "keepdims", "alpha", "nothing"]
    )
    value = rng.choice([rng.choice(_NUMBERS), [1, 1], [0, 1, 2], 0.5, "x"])
    node.attribute.append(helper.make_attribute(name, value))
    return f"{node.op_type} {name}={value}"


def _shape(model: onnx.ModelProto, rng: random.Random) -> str:
    info = rng.choice([*model.graph.input, *model.graph.output, *model.graph.value_info])
    dims = info.type.tensor_type.shape.dim
    kind = rng.randrange(4)
    if kind == 0 or not dims:
        dims.add().dim_value = rng.choice([1, 2, 3])
    elif kind == 1:
        del dims[rng.randrange(len(dims))]
    elif kind == 2:
        rng.choice(dims).dim_value = rng.choice(_NUMBERS)
    else:
        rng.choice(dims).dim_param = rng.choice(["n", "", "n\n"])
    return f"{info.name} {[d.dim_param or d.dim_value for d in dims]}"


def _type(model: onnx.ModelProto, rng: random.Random) -> str:
    info = rng.choice([*model.graph.input, *model.graph.output])
    info.type.tensor_type.elem_type = rng.randrange(26)
    return f"{info.name} {info.type.tensor_type.elem_type}"


def _name(model: onnx.ModelProto, rng: random.Random) -> str:
    node = rng.choice(_nodes(model))
    names = [name for each in _nodes(model) for name in (*each.input, *each.output)]
    kind = rng.randrange(4)
    if kind == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([*names, *_NAMES])
    elif kind == 1 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice([*names, *_NAMES])
    elif kind == 2:
        info = rng.choice([*model.graph.input, *model.graph.output])
        info.name = rng.choice([*names, *_NAMES])
    else:
        node.name = rng.choice(_NAMES)
    return f"{node.op_type} {list(node.input)} -> {list(node.output)}"[:120]


def _operands(model: onnx.ModelProto, rng: random.Random) -> str:
    node = rng.choice(_nodes(model))
    if node.input and rng.random() < 0.5:
        del node.input[rng.randrange(len(node.input))]
    else:
        node.input.append(rng.choice([name for each in _nodes(model) for name in each.input]))
    return f"{node.op_type} of {len(node.input)}"


def _operator(model: onnx.ModelProto, rng: random.Random) -> str:
    node = rng.choice(_nodes(model))
    before = node.op_type
    others = "Add Conv MatMul Relu Reshape Gather Concat Softmax Loop Nothing TopK".split()
    node.op_type = rng.choice([*others, *(each.op_type for each in _nodes(model))])
    if rng.random() < 0.1:
        node.domain = rng.choice(["com.example", "ai.onnx.ml", "com.microsoft", "\xff"])
    return f"{before} -> {node.domain}{node.op_type}"


def _order(model: onnx.ModelProto, rng: random.Random) -> str:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    kept = nodes[: rng.choice([len(nodes), len(nodes), len(nodes) - 1])]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return f"{len(kept)} of {len(nodes)}"


def _weights(model: onnx.ModelProto, rng: random.Random) -> str:
    tensor = rng.choice(model.graph.initializer)
    _tensor(tensor, rng)
    return f"{tensor.name} {list(tensor.dims)} {tensor.data_type}"


def _tensor(tensor: TensorProto, rng: random.Random) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        tensor.data_type = rng.randrange(26)
    elif kind == 1 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_NUMBERS)
    elif kind == 2:
        tensor.dims.append(rng.choice([1, 2, 0, -1]))
    elif kind == 3:
        tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]
    elif kind == 4:
        tensor.raw_data = tensor.raw_data + b"\0" * rng.choice([1, 4, 64])
    else:
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key = "location"
        entry.value = rng.choice(["../../etc/passwd", "", "nothing", "/dev/zero", "\0"])


def _no_weights(model: onnx.ModelProto, rng: random.Random) -> str:
    at = rng.randrange(len(model.graph.initializer))
    name: str = model.graph.initializer[at].name
    del model.graph.initializer[at]
    return name


def _version(model: onnx.ModelProto, rng: random.Random) -> str:
    if rng.random() < 0.3:
        model.ir_version = rng.choice([0, 1, 3, 11, 99, -1])
        return f"format {model.ir_version}"
    opset = rng.choice(model.opset_import)
    opset.version = rng.choice([0, 1, 5, 6, 7, 9, 11, 13, 17, 18, 21, 22, 23, 24, 99, -1, 2**62])
    return f"operator set {opset.version}"


def _outputs(model: onnx.ModelProto, rng: random.Random) -> str:
    if rng.random() < 0.5:
        del model.graph.output[rng.randrange(len(model.graph.output))]
    else:
        model.graph.output.append(rng.choice([*model.graph.output, *model.graph.input]))
    return f"{len(model.graph.output)}"


_CHANGES: tuple[Callable[[onnx.ModelProto, random.Random], str], ...] = (
    *(_attribute, _attribute, _attribute, _no_attribute, _new_attribute, _shape, _shape, _type, _name, _name),
    *(_operands, _operator, _order, _weights, _weights, _no_weights, _version, _outputs),
)
