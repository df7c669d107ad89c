"""Shape inference, by onnx."""

from __future__ import annotations

import logging

import onnx

log = logging.getLogger(__name__)


def infer_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself, with the types of its values that onnx infers written into it.

    Infers on a copy without the large weights: inference serialises the model, which has a limit of 2 GiB.
    """
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for tensor in bare.graph.initializer:
        if len(tensor.raw_data) > 4096:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key, entry.value = "location", "elsewhere"
    try:
        bare = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except (onnx.shape_inference.InferenceError, UnicodeDecodeError, MemoryError, RuntimeError) as error:
        log.warning("ONNX shape inference failed: %s", error)
        return model
    del model.graph.value_info[:]
    model.graph.value_info.extend(bare.graph.value_info)
    inferred = {info.name: info for info in bare.graph.output}
    for info in model.graph.output:
        info.CopyFrom(inferred[info.name])
    return model
