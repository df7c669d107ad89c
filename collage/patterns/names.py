"""Short operator names: ``conv2d``, ``dense`` and ``relu`` for Relax's ``nn.conv2d``, ``matmul`` and ``nn.relu``."""

from __future__ import annotations

from collections.abc import Mapping

from collage.errors import RegistrationError

_ALIASES: Mapping[str, str] = {
    "dense": "matmul",
    "batch_matmul": "matmul",
    "bias_add": "add",
    "transpose": "permute_dims",
    "concatenate": "concat",
    "cast": "astype",
    "global_avg_pool2d": "mean",
    "neg": "negative",
}
"""The Relax operators that other systems, mostly TVM's older Relay, call by other names."""


_OF_ONNX: Mapping[str, str] = {
    "ArgMax": "argmax",
    "AveragePool": "avg_pool1d avg_pool2d avg_pool3d",
    "BatchNormalization": "batch_norm",
    "Conv": "conv1d conv2d conv3d",
    "ConvTranspose": "conv1d_transpose conv2d_transpose conv3d_transpose",
    "Div": "divide",
    "Expand": "broadcast_to",
    "Gather": "take",
    "Gemm": "matmul",
    "GlobalAveragePool": "mean",
    "GreaterOrEqual": "greater_equal",
    "LayerNormalization": "layer_norm",
    "LessOrEqual": "less_equal",
    "LogSoftmax": "log_softmax",
    "MaxPool": "max_pool1d max_pool2d max_pool3d",
    "Mul": "multiply",
    "Pow": "power",
    "RMSNormalization": "rms_norm",
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceSum": "sum",
    "Resize": "resize2d",
    "Slice": "strided_slice",
    "Sub": "subtract",
    "Unsqueeze": "expand_dims",
}
"""ONNX's names of common operators, and Relax's short ones, if these differ in more than capitals."""
_SAME_NAMED = frozenset(
    "Abs Acos Acosh Add Asin Asinh Atan Atanh Cast Ceil Clip Concat Cos Cosh CumSum Einsum Equal Erf Exp Flatten Floor "
    "Gelu LeakyRelu Less Greater Log MatMul Max Min Mod Neg Not Pad PRelu Relu Reshape Round Selu Sigmoid Sign Sin "
    "Sinh Softmax Softplus Split Sqrt Squeeze Sum Tan Tanh Tile TopK Transpose Where".split()
)


def aliases_of(name: str) -> tuple[str, ...]:
    """The other names of an operator."""
    return tuple(alias for alias, meant in _ALIASES.items() if meant == name)


def relax_names(name: str) -> tuple[str, ...]:
    """The short names of what ONNX calls ``name``, such as ``relu`` for ``Relu``; none if it is no such name."""
    if name in _SAME_NAMED:
        return (canonical(name.lower()),)
    return tuple(_OF_ONNX.get(name, "").split())


class OpName(str):
    """An operator's short name that equals its other names: ``"matmul" == "dense" == "relax.matmul"``.

    Only ``==``, and ``in`` a tuple or list, know the aliases; hashing, so sets and dictionaries, does not. A
    comparison with ONNX's name of the operator, as in ``op.name == "Relu"``, would never hold: it raises
    RegistrationError, which names Relax's.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        if canonical(self) == canonical(other):
            return True
        if other[:1].isupper() and canonical(self) in relax_names(other):
            raise RegistrationError(f"operators have Relax's names: {other!r} is {str(self)!r} in patterns and rules.")
        return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(canonical(self))


def canonical(name: str) -> str:
    """The name by which names are compared: without ``relax.``, ``nn.`` and ``image.``, and with aliases replaced."""
    plain = str.removeprefix(str.removeprefix(str.removeprefix(name, "relax."), "nn."), "image.")
    return _ALIASES.get(plain, plain)


def short_name(op: str) -> OpName:
    """The short name of a node's operator: ``conv2d`` for ``nn.conv2d``. Opaque ONNX operators keep ``onnx.``."""
    return OpName(canonical(op))
