"""ONNX Runtime's own quantisation to 8 bits: weights ahead of time, and what they are multiplied with in each call.

It is what ONNX Runtime's ``quantize_dynamic`` does without other options, but for convolutions: of these it makes
integer products of a kind that ONNX Runtime 1.31 has no kernel for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage.backends.base import UnsupportedError
from collage.core.library_text import library_text

if TYPE_CHECKING:
    from onnx import ModelProto

_WITHOUT_KERNELS = "Conv"
_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")
"""The mark of a model that needs no advice to be simplified first."""
_OF_INTEGERS = ("MatMulInteger", "DynamicQuantizeLSTM", "QAttention")


def quantised(model: ModelProto) -> ModelProto:
    """The model with weights of products in 8 bits. Raises UnsupportedError where there are none, or it cannot be."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.registry import IntegerOpsRegistry

    from collage.core.temporary import TemporaryFolder
    from collage.frontend.read.apart import filled

    prepared = onnx.ModelProto()
    prepared.CopyFrom(filled(model))
    mark = prepared.metadata_props.add()
    mark.key, mark.value = _PREPARED
    with TemporaryFolder("quantise") as folder:
        path = folder / "model.onnx"
        try:
            quantize_dynamic(
                prepared, path, op_types_to_quantize=[n for n in IntegerOpsRegistry if n != _WITHOUT_KERNELS]
            )
        except Exception as error:  # the tool raises anything
            raise UnsupportedError(f"ONNX Runtime does not quantise the model: {library_text(error)}") from error
        found = onnx.load(path)
    if not any(node.op_type in _OF_INTEGERS for node in found.graph.node):
        raise UnsupportedError("ONNX Runtime finds no product with weights to quantise")
    return found
