"""TVM's operator kinds for Relax operators, by name.

Relax operators have no ``TOpPattern``. TVM derives it from the lowered loops, which takes milliseconds for each
operator. So the kinds of the operators that the importer emits are listed here.
"""

from __future__ import annotations

from collections.abc import Mapping

from collage.graph.dataflow import OpKind

_BY_KIND: Mapping[OpKind, str] = {
    OpKind.ELEMWISE: (
        "abs acos acosh asin asinh atan atanh bitwise_not ceil clip cos cosh erf exp floor isfinite isinf isnan "
        "log logical_not negative round rsqrt sigmoid sign sin sinh sqrt square tan tanh astype nn.relu nn.gelu "
        "nn.gelu_tanh nn.silu nn.leakyrelu nn.softplus nn.relu6 nn.selu nn.dropout hardswish trunc"
    ),
    OpKind.BROADCAST: (
        "add subtract multiply divide floor_divide mod floor_mod power maximum minimum equal not_equal greater "
        "greater_equal less less_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor "
        "left_shift right_shift where broadcast_to nn.prelu nn.batch_norm log_add_exp"
    ),
    OpKind.INJECTIVE: (
        "reshape flatten squeeze expand_dims permute_dims concat split strided_slice take gather_elements gather_nd "
        "repeat tile flip stack layout_transform full full_like ones zeros ones_like zeros_like arange tril triu "
        "nn.pad nn.pixel_shuffle image.resize2d eye one_hot reverse_sequence index_tensor meshgrid slice_scatter"
    ),
    OpKind.REDUCTION: "sum mean max min prod std variance argmax argmin all any",
    OpKind.OUT_FUSABLE: (
        "matmul linear einsum nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose "
        "nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.adaptive_avg_pool2d "
        "nn.conv3d_transpose nn.adaptive_avg_pool1d nn.adaptive_avg_pool3d outer"
    ),
}
_KINDS = {name: kind for kind, names in _BY_KIND.items() for name in names.split()}

COMPUTE_BOUND = frozenset(
    "matmul linear einsum nn.conv1d nn.conv2d nn.conv3d "
    "nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose nn.attention nn.attention_bias".split()
)
"""Operators whose arithmetic takes longer than their memory traffic. They need a scheduled kernel."""


_ROUNDING = ("onnx.QuantizeLinear", "onnx.DynamicQuantizeLinear", "onnx.QLinear", "onnx.QGemm")


def op_kind(op: str) -> OpKind:
    """The kind of a Relax operator, named without ``relax.``. Unknown operators are opaque."""
    return _KINDS.get(op, OpKind.OPAQUE)


def rounds(op: str) -> bool:
    """Whether an operator of a graph rounds to integers of a few bits, as quantised arithmetic does at its end."""
    return op == "quantize" or op.startswith(_ROUNDING)


def is_convolution(op: str) -> bool:
    """Whether an operator of a graph is a convolution, whose outputs have the channels as their second index."""
    return op.startswith(("nn.conv", "onnx.Conv"))
