"""Operators of single elements, with broadcasting."""

from __future__ import annotations

from functools import reduce
from typing import Any

from collage.backends.torch_graph.operator import Operator, Table, plain

__all__ = ["elementwise"]


def elementwise() -> Table:
    """The operators by name."""
    return {**_functions(), **_activations(), **_of_several()}


def _functions() -> Table:
    """Functions that PyTorch has under another name, or with the same one."""
    import torch

    same = "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor log neg reciprocal relu round sigmoid"
    found = {name.capitalize(): getattr(torch, name) for name in same.split()}
    found |= {name.capitalize(): getattr(torch, name) for name in "sin sinh sqrt tan tanh".split()}
    return plain(
        {
            **found,
            "Not": torch.logical_not,
            "IsNaN": torch.isnan,
            "Add": torch.add,
            "Sub": torch.sub,
            "Mul": torch.mul,
            "And": torch.logical_and,
            "Or": torch.logical_or,
            "Xor": torch.logical_xor,
            "Equal": torch.eq,
            "Less": torch.lt,
            "LessOrEqual": torch.le,
            "Greater": torch.gt,
            "GreaterOrEqual": torch.ge,
            "Where": torch.where,
            "Identity": _identity,
            "Dropout": _dropout,
            "Div": _divide,
            "Pow": _power,
            "Mod": _modulo,
            "Sign": _sign,
            "CastLike": _cast_like,
            "BitwiseAnd": torch.bitwise_and,
            "BitwiseOr": torch.bitwise_or,
            "BitwiseXor": torch.bitwise_xor,
            "BitwiseNot": torch.bitwise_not,
            "IsInf": _is_infinite,
        }
    )


def _activations() -> Table:
    return {
        **plain(
            {
                "LeakyRelu": _leaky_relu,
                "PRelu": _prelu,
                "Elu": _elu,
                "Celu": _celu,
                "Selu": _selu,
                "Gelu": _gelu,
                "HardSigmoid": _hard_sigmoid,
                "HardSwish": _hard_swish,
                "Mish": _mish,
                "Softplus": _softplus,
                "Softsign": _softsign,
                "Swish": _swish,
                "ThresholdedRelu": _thresholded_relu,
            }
        ),
        "Clip": Operator(_clip, numbers=(1, 2)),
    }


def _of_several() -> Table:
    return plain({"Sum": _sum, "Max": _max, "Min": _min, "Mean": _mean})


def _identity(x: Any) -> Any:
    return x


def _dropout(x: Any, ratio: Any = None, training: Any = None, *, seed: int = 0) -> Any:
    return x


def _divide(a: Any, b: Any) -> Any:
    import torch

    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _power(a: Any, b: Any) -> Any:
    import torch

    return torch.pow(a, b).to(a.dtype)


def _modulo(a: Any, b: Any, *, fmod: int = 0) -> Any:
    import torch

    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def _sign(x: Any) -> Any:
    """The sign: NaN for NaN, but 0 for that of fewer bits, as in ONNX Runtime. PyTorch's is 0 for each NaN."""
    import torch

    sign = torch.sign(x)
    return torch.where(torch.isnan(x), x, sign) if x.dtype in (torch.float32, torch.float64) else sign


def _is_infinite(x: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    import torch

    below = torch.isneginf(x) if detect_negative else torch.zeros_like(x, dtype=torch.bool)
    return below | torch.isposinf(x) if detect_positive else below


def _cast_like(x: Any, other: Any, *, saturate: int = 1) -> Any:
    return x.to(other.dtype)


def _leaky_relu(x: Any, *, alpha: float = 0.01) -> Any:
    import torch

    return torch.nn.functional.leaky_relu(x, alpha)


def _prelu(x: Any, slope: Any) -> Any:
    import torch

    return torch.where(x < 0, x * slope, x)


def _elu(x: Any, *, alpha: float = 1.0) -> Any:
    import torch

    return torch.nn.functional.elu(x, alpha)


def _celu(x: Any, *, alpha: float = 1.0) -> Any:
    import torch

    return torch.nn.functional.celu(x, alpha)


def _selu(x: Any, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Any:
    import torch

    return torch.where(x > 0, gamma * x, gamma * alpha * torch.expm1(x))


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    import torch

    return torch.nn.functional.gelu(x, approximate=approximate)


def _hard_sigmoid(x: Any, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    import torch

    return torch.clamp(alpha * x + beta, 0, 1)


def _hard_swish(x: Any) -> Any:
    import torch

    return x * torch.clamp(x / 6 + 0.5, 0, 1)


def _mish(x: Any) -> Any:
    import torch

    return torch.nn.functional.mish(x)


def _softplus(x: Any) -> Any:
    import torch

    return torch.nn.functional.softplus(x)


def _softsign(x: Any) -> Any:
    import torch

    return torch.nn.functional.softsign(x)


def _swish(x: Any, *, alpha: float = 1.0) -> Any:
    import torch

    return x * torch.sigmoid(alpha * x)


def _thresholded_relu(x: Any, *, alpha: float = 1.0) -> Any:
    import torch

    return torch.where(x > alpha, x, 0)


def _clip(x: Any, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Any:
    import torch

    least, most = (low[0] if low else min), (high[0] if high else max)
    return x if least is None and most is None else torch.clamp(x, least, most)


def _sum(*values: Any) -> Any:
    import torch

    return reduce(torch.add, values)


def _max(*values: Any) -> Any:
    import torch

    return reduce(torch.maximum, values)


def _min(*values: Any) -> Any:
    import torch

    return reduce(torch.minimum, values)


def _mean(*values: Any) -> Any:
    return _sum(*values) / len(values)
