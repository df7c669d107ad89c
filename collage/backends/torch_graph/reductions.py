"""Normalisations, reductions, and what looks for extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.torch_graph.operator import Operator, Table, plain

__all__ = ["before_13", "reductions"]


def reductions() -> Table:
    """The operators by name."""
    reduced = {f"Reduce{name}": Operator(_reduction(run), numbers=(1,)) for name, run in _REDUCED.items()}
    normalised: dict[str, Callable[..., Any]] = {
        "BatchNormalization": _batch_normalisation,
        "InstanceNormalization": _instance_normalisation,
        "LayerNormalization": _layer_normalisation,
        "GroupNormalization": _group_normalisation,
        "RMSNormalization": _rms_normalisation,
        "LRN": _lrn,
        "Softmax": _softmax,
        "LogSoftmax": _log_softmax,
        "ArgMax": _arg_max,
        "ArgMin": _arg_min,
    }
    return {
        **reduced,
        **plain(normalised),
        "TopK": Operator(_top_k, numbers=(1,)),
        "CumSum": Operator(_cumulated, numbers=(1,)),
    }


def before_13() -> Table:
    """Operators that had another meaning before operator set 13: all axes from one on were taken as one."""
    return plain({"Softmax": _flat_softmax, "LogSoftmax": _flat_log_softmax})


def _reduction(run: Callable[[Any, list[int], bool], Any]) -> Callable[..., Any]:
    def reduced(
        x: Any,
        given: Sequence[int] | None = None,
        *,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Any:
        wanted = list(given or axes or ())
        if not wanted and noop_with_empty_axes:
            return x
        return run(x, wanted or list(range(x.dim())), bool(keepdims)).to(x.dtype)

    return reduced


def _reduced_mean(x: Any, axes: list[int], keep: bool) -> Any:
    return x.mean(dim=axes, keepdim=keep)


def _reduced_sum(x: Any, axes: list[int], keep: bool) -> Any:
    return x.sum(dim=axes, keepdim=keep)


def _reduced_max(x: Any, axes: list[int], keep: bool) -> Any:
    return x.amax(dim=axes, keepdim=keep)


def _reduced_min(x: Any, axes: list[int], keep: bool) -> Any:
    return x.amin(dim=axes, keepdim=keep)


def _reduced_product(x: Any, axes: list[int], keep: bool) -> Any:
    for axis in sorted((each % x.dim() for each in axes), reverse=True):
        x = x.prod(dim=axis, keepdim=keep)
    return x


def _reduced_l1(x: Any, axes: list[int], keep: bool) -> Any:
    return x.abs().sum(dim=axes, keepdim=keep)


def _reduced_l2(x: Any, axes: list[int], keep: bool) -> Any:
    return (x * x).sum(dim=axes, keepdim=keep).sqrt()


def _reduced_squares(x: Any, axes: list[int], keep: bool) -> Any:
    return (x * x).sum(dim=axes, keepdim=keep)


def _reduced_log_sum(x: Any, axes: list[int], keep: bool) -> Any:
    return x.sum(dim=axes, keepdim=keep).log()


def _reduced_log_sum_exp(x: Any, axes: list[int], keep: bool) -> Any:
    return x.logsumexp(dim=axes, keepdim=keep)


_REDUCED: dict[str, Callable[[Any, list[int], bool], Any]] = {
    "Mean": _reduced_mean,
    "Sum": _reduced_sum,
    "Max": _reduced_max,
    "Min": _reduced_min,
    "Prod": _reduced_product,
    "L1": _reduced_l1,
    "L2": _reduced_l2,
    "SumSquare": _reduced_squares,
    "LogSum": _reduced_log_sum,
    "LogSumExp": _reduced_log_sum_exp,
}


def _batch_normalisation(
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
) -> Any:
    import torch

    if training_mode or not spatial:
        raise UnsupportedError("batch normalisation in training mode, or of each element by itself")
    return torch.nn.functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


def _instance_normalisation(x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5) -> Any:
    import torch

    return torch.nn.functional.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


def _layer_normalisation(
    x: Any, scale: Any, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    import torch

    shape = x.shape[axis % x.dim() :]
    if scale.shape != shape or (bias is not None and bias.shape != shape):
        y = torch.nn.functional.layer_norm(x, shape, eps=epsilon) * scale
        return y if bias is None else y + bias
    return torch.nn.functional.layer_norm(x, shape, scale, bias, epsilon)


def _group_normalisation(
    x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Any:
    import torch

    if scale.shape[0] != x.shape[1]:
        raise UnsupportedError("group normalisation with a scale for each group")
    return torch.nn.functional.group_norm(x, num_groups, scale, bias, epsilon)


def _rms_normalisation(x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    axes = list(range(axis % x.dim(), x.dim()))
    return x / ((x * x).mean(dim=axes, keepdim=True) + epsilon).sqrt() * scale


def _lrn(x: Any, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Any:
    import torch

    return torch.nn.functional.local_response_norm(x, size, alpha, beta, bias)


def _softmax(x: Any, *, axis: int = -1) -> Any:
    import torch

    return torch.softmax(x, axis)


def _log_softmax(x: Any, *, axis: int = -1) -> Any:
    import torch

    return torch.log_softmax(x, axis)


def _flat_softmax(x: Any, *, axis: int = 1) -> Any:
    import torch

    return torch.softmax(x.flatten(axis % x.dim()), -1).reshape(x.shape)


def _flat_log_softmax(x: Any, *, axis: int = 1) -> Any:
    import torch

    return torch.log_softmax(x.flatten(axis % x.dim()), -1).reshape(x.shape)


def _arg_max(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return _arg_best(x, axis, bool(keepdims), most=True, last=bool(select_last_index))


def _arg_min(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return _arg_best(x, axis, bool(keepdims), most=False, last=bool(select_last_index))


def _arg_best(x: Any, axis: int, keep: bool, *, most: bool, last: bool) -> Any:
    """The first or last place of the best number. NaN is passed over, unless it comes first of all.

    PyTorch gives the place of the first NaN, and ONNX Runtime does it so.
    """
    import torch

    floats = x.is_floating_point()
    known = torch.where(torch.isnan(x), -torch.inf if most else torch.inf, x) if floats else x
    best = (known.amax if most else known.amin)(dim=axis, keepdim=True)
    equal = (x == best).to(torch.uint8)
    place = equal.flip(axis) if last else equal
    found = place.argmax(dim=axis, keepdim=True)
    if last:
        found = x.shape[axis] - 1 - found
    if floats:
        found = torch.where(torch.isnan(x.narrow(axis, 0, 1)), 0, found)
    return found if keep else found.squeeze(axis)


def _top_k(x: Any, k: Sequence[int], *, axis: int = -1, largest: int = 1, sorted: int = 1, places: bool = False) -> Any:
    """The best numbers and their places. Of equal ones the first comes first, which matters where ``places`` are read.

    PyTorch's own ``topk`` takes any of them, but is faster.
    """
    import torch

    if not places:
        return tuple(torch.topk(x, k[0], axis, bool(largest), bool(sorted)))
    found = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    return tuple(each.narrow(axis, 0, k[0]) for each in found)


def _cumulated(x: Any, axis: Sequence[int], *, exclusive: int = 0, reverse: int = 0) -> Any:
    import torch

    (along,) = axis
    y = torch.cumsum(x.flip(along) if reverse else x, along, dtype=x.dtype)
    if exclusive:
        y = torch.cat([torch.zeros_like(y.narrow(along, 0, 1)), y.narrow(along, 0, y.shape[along] - 1)], along)
    return y.flip(along) if reverse else y
