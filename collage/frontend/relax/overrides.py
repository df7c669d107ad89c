"""Converters from ONNX to Relax that replace those of TVM's importer.

They replace converters that emit loop nests without a name (``call_tir``), make copies, or are wrong. A loop nest
matches no pattern, and goes back to ONNX only as a whole node. A converter takes the ONNX node's inputs and attributes.
It returns a Relax expression, or None to leave the node to TVM's converter. An exception makes the node opaque.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import tvm
from onnx import helper
from tvm import relax

Converter: TypeAlias = "Callable[[list[Any], dict[str, Any]], Any]"


def _chain(operator: Callable[[Any, Any], Any]) -> Converter:
    """Fold the operands pairwise. TVM broadcasts, stacks and reduces them, which copies every operand twice."""
    return lambda inputs, attrs: reduce(operator, inputs)


def _refused(reason: str) -> Converter:
    """The operator stays opaque, for that reason."""

    def refuse(inputs: list[Any], attrs: dict[str, Any]) -> None:
        raise NotImplementedError(reason)

    return refuse


def _constant(inputs: list[Any], position: int) -> Any:
    """The array of the input at ``position``; None when it is absent. Raises LookupError when it is no constant."""
    if position >= len(inputs) or inputs[position] is None:
        return None
    if not isinstance(inputs[position], tvm.ir.GenericConst):
        raise LookupError
    return inputs[position].value.numpy()


def _clip(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """A bound that is NaN or infinite has no effect. Where the lower bound is above the upper, ONNX gives the upper.

    An absent bound is the greatest or least finite number, so that an infinity becomes that number.
    """
    x, *given = inputs
    dtype = str(x.ty.dtype)
    floating = dtype in ("float16", "float32", "float64")
    ends = np.finfo(dtype) if floating else None
    bounds = [attrs.get("min"), attrs.get("max")]
    for position, bound in enumerate(given):
        bounds[position] = bound.value.numpy().item() if isinstance(bound, tvm.ir.GenericConst) else bound
    if ends is not None:
        bounds = [
            end if bound is None else bound
            for bound, end in zip(bounds, (float(ends.min), float(ends.max)), strict=True)
        ]
    low, high = (None if isinstance(b, float) and not math.isfinite(b) else b for b in bounds)
    if isinstance(low, float) and isinstance(high, float) and low <= high:
        return relax.op.clip(x, relax.prim_value(low), relax.prim_value(high))
    for operator, bound, absent in ((relax.op.maximum, low, -math.inf), (relax.op.minimum, high, math.inf)):
        if isinstance(bound, (int, float)):
            x = operator(x, relax.const(bound, dtype))
        elif bound is not None:
            if floating:
                bound = relax.op.where(relax.op.isnan(bound), relax.const(absent, dtype), bound)
            x = operator(x, bound)
    return x


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """ONNX has the widths before all ``axes``, then those after. Relax has both widths for each axis in turn."""
    try:
        pads, value, axes = _constant(inputs, 1), _constant(inputs, 2), _constant(inputs, 3)
    except LookupError:
        return None
    x, mode = inputs[0], attrs.get("mode", b"constant").decode()
    widths = [int(p) for p in (attrs["pads"] if pads is None else pads.reshape(-1))]
    value = attrs.get("value", 0.0) if value is None else value.item()
    if any(each < 0 for each in widths):
        return None
    rank = len(x.ty.shape)
    axes = range(rank) if axes is None else [int(a) % rank for a in axes.reshape(-1)]
    full = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        full[2 * axis], full[2 * axis + 1] = widths[position], widths[position + len(widths) // 2]
    return relax.op.nn.pad(x, full, _PAD_MODES[mode], value)


def _tile(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    if len(inputs) != 2 or not isinstance(inputs[1], tvm.ir.GenericConst):
        return None
    return relax.op.tile(inputs[0], [int(r) for r in inputs[1].value.numpy()])


def _cumsum(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    if not isinstance(inputs[1], tvm.ir.GenericConst):
        return None
    axis, reverse = int(inputs[1].value.numpy().item()) % len(inputs[0].ty.shape), attrs.get("reverse", 0)
    x = relax.op.flip(inputs[0], axis) if reverse else inputs[0]
    x = relax.op.cumsum(x, axis, exclusive=bool(attrs.get("exclusive", 0)))
    return relax.op.flip(x, axis) if reverse else x


def _conv(inputs: list[Any], attrs: dict[str, Any]) -> None:
    """Turn ``auto_pad`` SAME into explicit pads, in ``attrs``. TVM would pad in a kernel of its own."""
    mode = attrs.get("auto_pad", b"NOTSET").decode()
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return
    data, weight = ([int(e) for e in i.ty.shape.values][2:] for i in inputs[:2])
    strides, dilations = attrs.get("strides", [1] * len(data)), attrs.get("dilations", [1] * len(data))
    totals = [
        max((math.ceil(d / s) - 1) * s + (k - 1) * dilation + 1 - d, 0)
        for d, k, s, dilation in zip(data, weight, strides, dilations, strict=True)
    ]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    attrs["pads"] = small + large if mode == "SAME_UPPER" else large + small
    del attrs["auto_pad"]


_PLAIN_CASTS = frozenset("float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split())


def _cast(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """TVM casts floats to integers with eight operators that wrap around. ONNX does not define out-of-range values."""
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(attrs["to"])).name
    except (KeyError, TypeError):
        return None
    if not isinstance(getattr(inputs[0], "ty", None), relax.TensorType) or dtype not in _PLAIN_CASTS:
        return None
    source = str(inputs[0].ty.dtype)
    return relax.op.astype(inputs[0], dtype) if source in _PLAIN_CASTS else None


def _is_inf(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """TVM does not tell positive from negative infinities."""
    x, zero = inputs[0], relax.const(0, str(inputs[0].ty.dtype))
    signs = []
    if not attrs.get("detect_negative", 1):
        signs.append(relax.op.greater(x, zero))
    if not attrs.get("detect_positive", 1):
        signs.append(relax.op.less(x, zero))
    return reduce(relax.op.logical_and, signs, relax.op.isinf(x))


def _dropout(inputs: list[Any], attrs: dict[str, Any]) -> None:
    """TVM ignores the training mode."""
    training = inputs[2] if len(inputs) > 2 else None
    if training is not None and not (isinstance(training, tvm.ir.GenericConst) and not training.value.numpy().item()):
        raise NotImplementedError("dropout in training mode")


def unless_empty(value: Any) -> Any:
    """The input of a Resize, or None for an empty constant, as operator sets 11 and 12 leave scales out."""
    empty = isinstance(value, tvm.ir.GenericConst) and value.value.numpy().size == 0
    return None if empty else value


def _resize(inputs: list[Any], attrs: dict[str, Any]) -> None:
    """TVM reads only the output's size, and ignores attributes that it does not know."""
    policy = attrs.get("keep_aspect_ratio_policy", b"stretch").decode()
    if attrs.get("antialias", 0) or "axes" in attrs or policy != "stretch":
        raise NotImplementedError("resize with antialias, axes or keep_aspect_ratio_policy")
    scales = inputs[2] if len(inputs) > 2 else None
    if isinstance(scales, tvm.ir.GenericConst):
        extents = [int(e) for e in inputs[0].ty.shape.values]
        sizes = [float(s) * e for s, e in zip(scales.value.numpy(), extents, strict=True)]
        if any(abs(size - round(size)) > 1e-4 for size in sizes):
            raise NotImplementedError(f"resize by scales that give fractional sizes {sizes}")


def _roi_align(inputs: list[Any], attrs: dict[str, Any]) -> None:
    """TVM shifts the regions before it scales them, and its maximum is over other values than ONNX's."""
    scale, mode = attrs.get("spatial_scale", 1.0), attrs.get("coordinate_transformation_mode", b"half_pixel")
    if attrs.get("mode", b"avg") != b"avg" or (scale != 1.0 and mode != b"output_half_pixel"):
        raise NotImplementedError(f"RoiAlign with scale {scale} and mode {attrs.get('mode', b'avg')!r}")


def _is_integer(expr: Any) -> bool:
    return "int" in str(expr.ty.dtype)


def _thresholded_relu(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """TVM multiplies by 0, which gives NaN for values that are not finite."""
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    above = relax.op.greater(x, relax.const(attrs.get("alpha", 1.0), dtype))
    return relax.op.where(above, x, relax.const(0.0, dtype))


def _shrink(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """TVM adds two tensors, one of them made by an operator without inputs."""
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    limit, bias = attrs.get("lambd", 0.5), relax.const(attrs.get("bias", 0.0), dtype)
    below = relax.op.where(relax.op.less(x, relax.const(-limit, dtype)), relax.op.add(x, bias), relax.const(0, dtype))
    return relax.op.where(relax.op.greater(x, relax.const(limit, dtype)), relax.op.subtract(x, bias), below)


def _log_sum_exp(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """TVM subtracts the largest value even where it is infinite, which gives NaN."""
    _no_integers(inputs, attrs)
    axes = _constant(inputs, 1)
    axes = attrs.get("axes") if axes is None else [int(a) for a in axes.reshape(-1)]
    x, axes = inputs[0], list(axes) if axes else None
    dtype = str(x.ty.dtype)
    most = relax.op.max(x, axes, True)
    shift = relax.op.where(relax.op.isinf(most), relax.const(0, dtype), most)
    total = relax.op.sum(relax.op.exp(relax.op.subtract(x, shift)), axes, True)
    result = relax.op.add(relax.op.log(total), shift)
    return result if attrs.get("keepdims", 1) else relax.op.squeeze(result, axes)


def _no_integers(inputs: list[Any], attrs: dict[str, Any]) -> None:
    """ONNX Runtime reduces integers in float64 here, and saturates the result. Over no axes it maps each number."""
    if _is_integer(inputs[0]):
        raise NotImplementedError("a reduction of integers in several steps")
    given = _constant(inputs, 1)
    axes = attrs.get("axes") if given is None else given
    if attrs.get("noop_with_empty_axes", 0) and (axes is None or len(axes) == 0):
        raise NotImplementedError("a reduction over no axes")


def _mod(inputs: list[Any], attrs: dict[str, Any]) -> None:
    """ONNX Runtime calculates C's remainder of 64-bit integers in float64."""
    if attrs.get("fmod", 0) and str(inputs[0].ty.dtype) in ("int64", "uint64"):
        raise NotImplementedError("C's remainder of 64-bit integers")


def _arg_reduce(inputs: list[Any], attrs: dict[str, Any]) -> None:
    """TVM reverses the values to find the last of the largest ones, which gives another index where there is NaN."""
    if attrs.get("select_last_index", 0):
        raise NotImplementedError("the last index of the largest value")


def _mean_variance(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """TVM subtracts the square of the mean from the mean of squares, which cancels where the mean is large."""
    axes = [int(each) for each in attrs.get("axes", (0, 2, 3))]
    centred = relax.op.subtract(inputs[0], relax.op.mean(inputs[0], axes, keepdims=True))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    return relax.op.divide(centred, relax.op.sqrt(variance))


def _rms_norm(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """TVM's operator wants a scale of the shape that is normalised over. ONNX has any that broadcasts to the data."""
    data, scale = inputs
    axis = attrs.get("axis", -1) % len(data.ty.shape)
    sizes, given = ([int(size) for size in each.ty.shape] for each in (data, scale))
    if sizes[axis:] == given or str(data.ty.dtype) != "float32":
        return None
    ones = relax.const(np.ones(sizes[axis:], np.float32))
    axes = list(range(axis, len(sizes)))
    return relax.op.multiply(relax.op.nn.rms_norm(data, ones, axes, attrs.get("epsilon", 1e-5)), scale)


def _dynamic_quantize(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """TVM's scale of zeros is 0. ONNX Runtime's is 1."""
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    zero, one, steps = (relax.const(each, dtype) for each in (0, 1, 255))
    high, low = relax.op.maximum(zero, relax.op.max(x)), relax.op.minimum(zero, relax.op.min(x))
    width = relax.op.divide(relax.op.subtract(high, low), steps)
    scale = relax.op.where(relax.op.equal(high, low), one, width)
    places = relax.op.subtract(zero, relax.op.divide(low, scale))
    zero_point = relax.op.astype(relax.op.round(relax.op.clip(places, 0, 255)), "uint8")
    quantised = relax.op.quantize(x, scale, zero_point, axis=0, out_dtype="uint8")
    return relax.Tuple([quantised, scale, zero_point])


def _softplus(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """TVM takes it to pieces, and adds 1 to exp(-|x|) before the logarithm: for numbers below -17 that makes 0."""
    return relax.op.nn.softplus(inputs[0], threshold=math.inf)


_KNOWN = (tvm.ir.GenericConst, relax.ShapeExpr)


def bounded_indices(op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any | None:
    """The indices of a GatherElements or GatherND, limited to the data. TVM reads wherever they point.

    None for other operators, and for constant indices, which are known to be right.
    """
    if op_type not in ("GatherElements", "GatherND") or isinstance(inputs[1], _KNOWN):
        return None
    data, indices = inputs[0], inputs[1]
    extents = [int(each) for each in data.ty.shape.values]
    if op_type == "GatherElements":
        extent = extents[attrs.get("axis", 0)]
        return relax.op.clip(indices, relax.prim_value(-extent), relax.prim_value(extent - 1))
    first = attrs.get("batch_dims", 0)
    count = int(indices.ty.shape.values[-1])
    dtype = str(indices.ty.dtype)
    ends = np.array(extents[first : first + count], dtype)
    least, most = (relax.const(each, dtype) for each in (-ends, ends - 1))
    return relax.op.minimum(relax.op.maximum(indices, least), most)


def in_bounds(result: Any) -> Any:
    """The conversion of a Gather with a ``take`` that stays in its table. TVM's would read wherever an index points."""
    if isinstance(result, relax.Call) and result.op == tvm.ir.Op.get("relax.take"):
        table, index = result.args
        if str(result.attrs.mode) == "fast" and not isinstance(index, _KNOWN):
            axis = result.attrs.axis
            return relax.op.take(table, index, None if axis is None else int(axis), "clip")
    return result


OVERRIDES: Mapping[str, Converter] = {
    "Cast": _cast,
    "Sum": _chain(relax.op.add),
    "Max": _chain(relax.op.maximum),
    "Min": _chain(relax.op.minimum),
    "Clip": _clip,
    "Pad": _pad,
    "Tile": _tile,
    "Einsum": lambda inputs, attrs: relax.op.einsum(tuple(inputs), attrs["equation"].decode()),
    "CumSum": _cumsum,
    "Conv": _conv,
    "IsInf": _is_inf,
    "Dropout": _dropout,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    # TVM's output has as many rows as there could be boxes.
    "NonMaxSuppression": _refused("how many boxes are found depends on data"),
    "ThresholdedRelu": _thresholded_relu,
    "Shrink": _shrink,
    "ReduceLogSumExp": _log_sum_exp,
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"), _no_integers),
    "Mod": _mod,
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_reduce),
    "Hardmax": _refused("hardmax"),  # TVM's result has a 1 even where all values are NaN
    "Softplus": _softplus,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _rms_norm,
    "DynamicQuantizeLinear": _dynamic_quantize,
}
"""The converters by ONNX operator type."""
