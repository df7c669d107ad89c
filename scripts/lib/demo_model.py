"""Write ResNet-50 with seeded random weights as an ONNX file, without a download.

    scripts/demo_model OUT.onnx

The onnx package brings the network for its own tests, with each weight made by a ConstantOfShape node. These
become random initializers here, so that a wrong kernel shows in the outputs.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import numpy_helper

from scripts.lib.light_models import FOLDER


def main() -> int:
    if sys.argv[1:] in (["-h"], ["--help"]):
        sys.stdout.write(__doc__ or "")
        return 0
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.stderr.write("usage: scripts/demo_model OUT.onnx\n")
        return 2
    model = onnx.load(str(FOLDER / "light_resnet50.onnx"))
    onnx.save_model(with_random_weights(model), sys.argv[1])
    return 0


def with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the ConstantOfShape nodes, in place; activations keep their scale from layer to layer."""
    rng = np.random.default_rng(0)
    graph = model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    variances = {node.input[4] for node in graph.node if node.op_type == "BatchNormalization"}
    made = {node.output[0]: node for node in graph.node if node.op_type == "ConstantOfShape"}
    for name, node in made.items():
        shape = tuple(int(extent) for extent in shapes[node.input[0]])
        if name in variances:
            values = rng.uniform(0.5, 1.5, shape)
        else:
            fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
            values = rng.standard_normal(shape) * np.sqrt(2 / fan_in) * (1 if len(shape) > 1 else 0.5)
        graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        graph.node.remove(node)
    model.ir_version = 8  # in older ones every initializer is an input too
    used = {name for node in graph.node for name in node.input}
    weights = {tensor.name for tensor in graph.initializer}
    for each in [each for each in graph.initializer if each.name not in used]:
        graph.initializer.remove(each)
    for each in [each for each in graph.input if each.name in weights]:
        graph.input.remove(each)
    onnx.checker.check_model(model)
    return model
