"""The table Relax operator → ONNX nodes: one small maker per family, rules as data.

A maker gets a ``Call`` and returns the names of its results, or raises ``Inexpressible``. What it writes is
valid from operator set 18 on (and mostly from 13 on; ``Call.need_opset`` guards the rest).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from collage.frontend.export_emit import Call, Inexpressible, OnnxAttr, as_integers, element_type
from collage.graph.dataflow import np_dtype

Maker: TypeAlias = "Callable[[Call], str | Sequence[str | None]]"

_BEGIN = -(2**63)
"""As the end of a backward Slice: up to and including element 0."""


def _is_float(dtype: str) -> bool:
    return not np.issubdtype(np_dtype(dtype), np.integer) and dtype != "bool"


# -- elementwise -------------------------------------------------------------------------------------------


def _same(op: str, **attrs: OnnxAttr) -> Maker:
    """The ONNX operator of the same meaning, on all inputs."""
    return lambda c: c.op(op, *c.x, **attrs)


def _of_bools(op: str) -> Maker:
    def make(c: Call) -> str:
        c.need(all(t.dtype == "bool" for t in c.types), "ONNX has it for bool only")
        return c.op(op, *c.x)

    return make


def _bitwise(op: str) -> Maker:
    def make(c: Call) -> str:
        c.need_opset(18)
        return c.op(op, *c.x)

    return make


def _shift(direction: str) -> Maker:
    def make(c: Call) -> str:
        c.need(c.out.dtype.startswith("uint"), "ONNX shifts unsigned integers only")
        return c.op("BitShift", *c.x, direction=direction)

    return make


def _not_equal(c: Call) -> str:
    return c.op("Not", c.op("Equal", *c.x))


def _rsqrt(c: Call) -> str:
    return c.op("Reciprocal", c.op("Sqrt", c.x[0]))


def _square(c: Call) -> str:
    return c.op("Mul", c.x[0], c.x[0])


def _trunc(c: Call) -> str:
    return c.op("Mul", c.op("Sign", c.x[0]), c.op("Floor", c.op("Abs", c.x[0])))


def _isfinite(c: Call) -> str:
    return c.op("Not", c.op("Or", c.op("IsNaN", c.x[0]), c.op("IsInf", c.x[0])))


def _floor_divide(c: Call) -> str:
    """ONNX divides integers towards zero: one less where the remainder's sign is not the divisor's."""
    quotient = c.op("Div", *c.x)
    if _is_float(c.out.dtype):
        return c.op("Floor", quotient)
    remainder = c.op("Sub", c.x[0], c.op("Mul", quotient, c.x[1]))
    zero = c.number(0, c.out.dtype)
    inexact = c.op("Not", c.op("Equal", remainder, zero))
    signs = c.op("Xor", c.op("Less", remainder, zero), c.op("Less", c.x[1], zero))
    below = c.op("And", inexact, signs)
    return c.op("Sub", quotient, c.op("Cast", below, to=element_type(c.out.dtype)))


def _floor_mod(c: Call) -> str:
    """The remainder with the divisor's sign: ONNX has it for integers."""
    if not _is_float(c.out.dtype):
        return c.op("Mod", *c.x, fmod=0)
    return c.op("Sub", c.x[0], c.op("Mul", c.x[1], c.op("Floor", c.op("Div", *c.x))))


def _clip(c: Call) -> str:
    bounds = []
    for name in ("arg1", "arg2"):
        bound = c.real(name)
        bounds.append("" if math.isinf(bound) else c.number(c.attr(name), c.out.dtype))
    return c.op("Clip", c.x[0], *bounds)


def _relu(c: Call) -> str:
    if _is_float(c.out.dtype):
        return c.op("Relu", c.x[0])
    return c.op("Max", c.x[0], c.number(0, c.out.dtype))


def _relu6(c: Call) -> str:
    return c.op("Clip", c.x[0], c.number(0, c.out.dtype), c.number(6, c.out.dtype))


def _leaky_relu(c: Call) -> str:
    return c.op("LeakyRelu", c.x[0], alpha=c.real("alpha"))


def _prelu(c: Call) -> str:
    after = len(c.types[0].shape) - 1 - c.axis()
    return c.op("PRelu", c.x[0], c.reshape(c.x[1], (*c.types[1].shape, *[1] * after)))


def _gelu(c: Call) -> str:
    if c.opset >= 20:
        return c.op("Gelu", c.x[0])
    dtype = c.out.dtype
    erf = c.op("Erf", c.op("Mul", c.x[0], c.number(math.sqrt(0.5), dtype)))
    half = c.op("Mul", c.x[0], c.number(0.5, dtype))
    return c.op("Mul", half, c.op("Add", erf, c.number(1.0, dtype)))


def _gelu_tanh(c: Call) -> str:
    if c.opset >= 20:
        return c.op("Gelu", c.x[0], approximate="tanh")
    dtype, x = c.out.dtype, c.x[0]
    cube = c.op("Mul", x, c.op("Mul", x, x))
    inner = c.op("Add", x, c.op("Mul", cube, c.number(0.044715, dtype)))
    tanh = c.op("Tanh", c.op("Mul", inner, c.number(math.sqrt(2 / math.pi), dtype)))
    return c.op("Mul", c.op("Mul", x, c.number(0.5, dtype)), c.op("Add", tanh, c.number(1.0, dtype)))


def _silu(c: Call) -> str:
    return c.op("Mul", c.x[0], c.op("Sigmoid", c.x[0]))


def _softplus(c: Call) -> str:
    beta = c.real("beta")
    c.need(c.real("threshold") >= 20, "Softplus with a threshold below 20 is no ONNX Softplus")
    if beta == 1:
        return c.op("Softplus", c.x[0])
    factor = c.number(beta, c.out.dtype)
    return c.op("Div", c.op("Softplus", c.op("Mul", c.x[0], factor)), factor)


def _cast(c: Call) -> str:
    c.need("float8" not in c.out.dtype, "Relax does not say whether a cast to 8-bit floats saturates")
    return c.op("Cast", c.x[0], to=element_type(c.out.dtype))


def _softmax(op: str) -> Maker:
    return lambda c: c.op(op, c.x[0], axis=c.axis())


def _first(c: Call) -> list[str | None]:
    return [c.x[0]]


# -- matrix products and convolutions ----------------------------------------------------------------------


def _matmul(c: Call) -> str:
    """With another output dtype the product is accumulated in it."""
    return c.op("MatMul", *(c.cast(x, t.dtype, c.out.dtype) for x, t in zip(c.x, c.types, strict=True)))


def _einsum(c: Call) -> str:
    return c.op("Einsum", *c.x, equation=c.text("subscripts"))


_DATA_LAYOUTS = ("NCW", "NCHW", "NCDHW")


def _pads(c: Call, rank: int) -> tuple[int, ...]:
    padding = c.integers("padding")
    return padding if len(padding) == 2 * rank else padding * (2 * rank // len(padding))


def _windowed(c: Call, kernel_layouts: Sequence[str]) -> dict[str, OnnxAttr]:
    rank = len(c.types[0].shape) - 2
    data, kernel = c.text("data_layout"), c.text("kernel_layout")
    c.need(data in _DATA_LAYOUTS and c.text("out_layout") in ("", data), f"data layout {data}")
    c.need(kernel in kernel_layouts, f"kernel layout {kernel}")
    c.need(c.out.dtype == c.types[0].dtype, f"gives {c.out.dtype} for {c.types[0].dtype}")
    return {
        "kernel_shape": c.types[1].shape[2:],
        "strides": c.integers("strides"),
        "pads": _pads(c, rank),
        "dilations": c.integers("dilation"),
        "group": c.integer("groups"),
    }


def _conv(c: Call) -> str:
    return c.op("Conv", *c.x, **_windowed(c, ("OIW", "OIHW", "OIDHW")))


def _conv_transpose(c: Call) -> str:
    attrs = _windowed(c, ("IOW", "IOHW", "IODHW"))
    return c.op("ConvTranspose", *c.x, output_padding=c.integers("output_padding"), **attrs)


def _attention(c: Call) -> str:
    """Tensors are (batch, sequence, heads, size); scores get the optional bias before the softmax."""
    c.need(c.attr("causal_mask") is None and c.attr("window_size") is None, "masked attention")
    scale = c.attr("scale")
    factor = c.types[0].shape[-1] ** -0.5 if scale is None else c.real("scale")
    query = c.op("Transpose", c.x[0], perm=(0, 2, 1, 3))
    key = c.op("Transpose", c.x[1], perm=(0, 2, 3, 1))
    value = c.op("Transpose", c.x[2], perm=(0, 2, 1, 3))
    scores = c.op("Mul", c.op("MatMul", query, key), c.number(factor, c.out.dtype))
    if len(c.x) > 3:
        scores = c.op("Add", scores, c.x[3])
    return c.op("Transpose", c.op("MatMul", c.op("Softmax", scores, axis=-1), value), perm=(0, 2, 1, 3))


# -- pooling -----------------------------------------------------------------------------------------------


def _pool(op: str) -> Maker:
    def make(c: Call) -> str:
        layout, data = c.text("layout"), c.types[0].shape
        c.need(layout in _DATA_LAYOUTS and c.text("out_layout") in ("", layout), f"layout {layout}")
        kernel, strides, dilation = c.integers("pool_size"), c.integers("strides"), c.integers("dilation")
        pads = _pads(c, len(kernel))
        attrs: dict[str, OnnxAttr] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
        beyond = [
            (c.out.shape[a + 2] - 1) * strides[a] + (k - 1) * dilation[a] + 1 - data[a + 2] - pads[a] - pads[a + rank]
            for rank in (len(kernel),)
            for a, k in enumerate(kernel)
        ]
        if any(each > 0 for each in beyond):  # the last window hangs over the end
            c.need(c.attr("ceil_mode"), "windows past the padding without ceil_mode")
            attrs["ceil_mode"] = 1
        if any(each != 1 for each in dilation):
            if op == "AveragePool":
                c.need_opset(19)
            attrs["dilations"] = dilation
        if op == "AveragePool" and c.attr("count_include_pad"):
            attrs["count_include_pad"] = 1
        return c.op(op, c.x[0], **attrs)

    return make


def _adaptive_avg_pool(c: Call) -> str:
    c.need(c.text("layout") in _DATA_LAYOUTS, f"layout {c.text('layout')}")
    data, out = c.types[0].shape[2:], c.out.shape[2:]
    if all(extent == 1 for extent in out):
        return c.op("GlobalAveragePool", c.x[0])
    c.need(all(d % o == 0 for d, o in zip(data, out, strict=True)), "windows of unequal sizes")
    kernel = [d // o for d, o in zip(data, out, strict=True)]
    return c.op("AveragePool", c.x[0], kernel_shape=kernel, strides=kernel)


# -- normalisation -----------------------------------------------------------------------------------------


def _batch_norm(c: Call) -> list[str | None]:
    c.need(not c.attr("training"), "batch normalisation in training")
    c.need(c.axis() == 1, "the channels are not on axis 1")
    c.need(c.attr("center") and c.attr("scale"), "batch normalisation without centre or scale")
    return [c.op("BatchNormalization", *c.x, epsilon=c.real("epsilon")), c.x[3], c.x[4]]


def _trailing(c: Call, axes: tuple[int, ...]) -> None:
    rank = len(c.types[0].shape)
    c.need(axes and axes == tuple(range(rank - len(axes), rank)), "normalises over axes that are not the last ones")


def _layer_norm(c: Call) -> str:
    c.need_opset(17)
    axes = c.axes("axes")
    _trailing(c, axes)
    return c.op("LayerNormalization", *c.x, axis=axes[0], epsilon=c.real("epsilon"))


def _rms_norm(c: Call) -> str:
    """x / sqrt(mean(x²) + ε) · weight, in 32 bits at least."""
    axes, dtype = c.axes("axes"), c.out.dtype
    _trailing(c, axes)
    wide = "float64" if dtype == "float64" else "float32"
    x = c.cast(c.x[0], dtype, wide)
    mean = c.reduce("ReduceMean", c.op("Mul", x, x), axes, True)
    root = c.op("Sqrt", c.op("Add", mean, c.number(c.real("epsilon"), wide)))
    return c.cast(c.op("Mul", c.op("Div", x, root), c.cast(c.x[1], dtype, wide)), wide, dtype)


def _spatial(c: Call) -> None:
    rank = len(c.types[0].shape)
    c.need(c.axis("channel_axis") == 1, "the channels are not on axis 1")
    c.need(c.axes("axes") == tuple(range(2, rank)), "normalises over other axes than the spatial ones")


def _instance_norm(c: Call) -> str:
    _spatial(c)
    return c.op("InstanceNormalization", *c.x, epsilon=c.real("epsilon"))


def _group_norm(c: Call) -> str:
    """As an InstanceNormalization over (batch, groups, rest); operator set 18's GroupNormalization is another."""
    _spatial(c)
    groups, (batch, channels, *rest), dtype = c.integer("num_groups"), c.out.shape, c.out.dtype
    folded = c.reshape(c.x[0], (batch, groups, channels // groups * math.prod(rest)))
    ones, zeros = c.array(np.ones(groups, np_dtype(dtype))), c.array(np.zeros(groups, np_dtype(dtype)))
    normal = c.op("InstanceNormalization", folded, ones, zeros, epsilon=c.real("epsilon"))
    per_channel = (channels, *[1] * len(rest))
    scaled = c.op("Mul", c.reshape(normal, c.out.shape), c.reshape(c.x[1], per_channel))
    return c.op("Add", scaled, c.reshape(c.x[2], per_channel))


# -- reductions --------------------------------------------------------------------------------------------


def _reduction_axes(c: Call) -> tuple[int, ...]:
    c.need(c.attr("axis") != (), "a reduction over no axes")
    return c.axes()


def _reduce(op: str) -> Maker:
    return lambda c: c.reduce(op, c.x[0], _reduction_axes(c), bool(c.attr("keepdims")))


def _variance(c: Call) -> str:
    axes = _reduction_axes(c)
    centred = c.op("Sub", c.x[0], c.reduce("ReduceMean", c.x[0], axes, True))
    return c.reduce("ReduceMean", c.op("Mul", centred, centred), axes, bool(c.attr("keepdims")))


def _std(c: Call) -> str:
    return c.op("Sqrt", _variance(c))


def _arg_reduce(op: str) -> Maker:
    def make(c: Call) -> str:
        if c.attr("axis") is not None:
            index = c.op(op, c.x[0], axis=c.axis(), keepdims=int(bool(c.attr("keepdims"))))
        else:
            flat = c.reshape(c.x[0], (c.types[0].size,))
            index = c.reshape(c.op(op, flat, axis=0, keepdims=0), c.out.shape)
        return c.cast(index, "int64", c.out.dtype)

    return make


def _cumulate(op: str, opset: int) -> Maker:
    def make(c: Call) -> str:
        c.need_opset(opset)
        x = c.x[0] if c.attr("axis") is not None else c.reshape(c.x[0], c.out.shape)
        axis = c.ints(c.axis() if c.attr("axis") is not None else 0)
        return c.op(op, c.cast(x, c.types[0].dtype, c.out.dtype), axis, exclusive=int(bool(c.attr("exclusive"))))

    return make


def _topk(c: Call) -> list[str | None]:
    axis, kind = c.axis(), c.text("ret_type")
    k = c.out.shape[axis]
    values, index = c.ops("TopK", 2, c.x[0], c.ints([k]), axis=axis, largest=int(bool(c.attr("largest"))), sorted=1)
    if kind == "values":
        return [values]
    index = c.cast(index, "int64", c.out_types[-1].dtype)
    return [index] if kind == "indices" else [values, index]


# -- moving data -------------------------------------------------------------------------------------------


def _reshape(c: Call) -> str:
    return c.reshape(c.x[0], c.out.shape)


def _permute(c: Call) -> str:
    rank = len(c.out.shape)
    axes = range(rank)[::-1] if c.attr("axes") is None else [a % rank for a in c.integers("axes")]
    return c.op("Transpose", c.x[0], perm=tuple(axes))


def _concat(c: Call) -> str:
    if c.attr("axis") is not None:
        return c.op("Concat", *c.x, axis=c.axis())
    return c.op("Concat", *(c.reshape(x, (t.size,)) for x, t in zip(c.x, c.types, strict=True)), axis=0)


def _stack(c: Call) -> str:
    axis = (0 if c.attr("axis") is None else c.integer("axis")) % len(c.out.shape)
    each = (*c.out.shape[:axis], 1, *c.out.shape[axis + 1 :])
    return c.op("Concat", *(c.reshape(x, each) for x in c.x), axis=axis)


def _split(c: Call) -> list[str]:
    axis = c.axis()
    sizes = [t.shape[axis] for t in c.out_types]
    return c.ops("Split", len(sizes), c.x[0], c.ints(sizes), axis=axis)


def _strided_slice(c: Call) -> str:
    """Starts are wrapped and clamped here; ends follow from the result's shape, so that none is ambiguous."""
    c.need(len(c.x) == 1, "slice bounds that are tensors")
    shape, rank = c.types[0].shape, len(c.types[0].shape)
    axes = [axis % rank for axis in c.integers("arg1")]
    begins = c.integers("arg2")
    strides = c.integers("arg4") if c.attr("arg4") is not None else (1,) * len(axes)
    starts, stops = [], []
    for axis, begin, stride in zip(axes, begins, strides, strict=True):
        extent, count = shape[axis], c.out.shape[axis]
        begin = begin + extent if begin < 0 else begin
        begin = min(max(begin, 0), extent) if stride > 0 else min(max(begin, -1), extent - 1)
        stop = begin + count * stride
        starts.append(begin if count else 0)
        stops.append((stop if stop >= 0 else _BEGIN) if count else 0)
    steps = [stride if c.out.shape[axis] else 1 for axis, stride in zip(axes, strides, strict=True)]
    return c.op("Slice", c.x[0], c.ints(starts), c.ints(stops), c.ints(axes), c.ints(steps))


def _flip(c: Call) -> str:
    return c.slice(c.x[0], c.axis(), -1, _BEGIN, -1)


def _take(c: Call) -> str:
    """Gather: an index that is out of range is an error in ONNX, so "fast" and "wrap" agree with it."""
    c.need(c.text("mode") in ("fast", "wrap"), f"out-of-range mode {c.text('mode')}")
    index = c.ints(c.integer("arg1")) if "arg1" in c.node.attrs else c.x[1]
    if c.attr("axis") is None:
        return c.op("Gather", c.reshape(c.x[0], (c.types[0].size,)), index, axis=0)
    return c.op("Gather", c.x[0], index, axis=c.axis())


def _gather_elements(c: Call) -> str:
    return c.op("GatherElements", *c.x, axis=c.axis())


def _gather_nd(c: Call) -> str:
    return c.op("GatherND", *c.x, batch_dims=c.integer("batch_dims"))


_SCATTER_REDUCTIONS = {"update": ("none", 11), "add": ("add", 16), "mul": ("mul", 16), "min": ("min", 18), "max": ("max", 18)}


def _scatter(op: str) -> Maker:
    def make(c: Call) -> str:
        kind = c.text("reduction")
        c.need(kind in _SCATTER_REDUCTIONS, f"reduction {kind}")
        reduction, opset = _SCATTER_REDUCTIONS[kind]
        c.need_opset(opset)
        attrs: dict[str, OnnxAttr] = {} if kind == "update" else {"reduction": reduction}
        if op == "ScatterElements":
            attrs["axis"] = c.axis()
        return c.op(op, *c.x, **attrs)

    return make


def _expand(c: Call) -> str:
    return c.op("Expand", c.x[0], c.ints(c.out.shape))


def _tile(c: Call) -> str:
    shape, repeats, rank = c.types[0].shape, c.integers("repeats"), len(c.out.shape)
    x = c.x[0] if len(shape) == rank else c.reshape(c.x[0], (*[1] * (rank - len(shape)), *shape))
    return c.op("Tile", x, c.ints([1] * (rank - len(repeats)) + list(repeats)))


def _repeat(c: Call) -> str:
    shape, count = c.types[0].shape, c.integer("repeats")
    shape, axis = ((c.types[0].size,), 0) if c.attr("axis") is None else (shape, c.axis())
    single = c.reshape(c.x[0], (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = c.op("Expand", single, c.ints((*shape[: axis + 1], count, *shape[axis + 1 :])))
    return c.reshape(wide, c.out.shape)


_PAD_MODES = {"constant": ("constant", 13), "reflect": ("reflect", 13), "replicate": ("edge", 13), "circular": ("wrap", 19)}


def _pad(c: Call) -> str:
    """Relax gives (before, after) for each axis in turn; ONNX all befores, then all afters."""
    widths = c.integers("pad_width")
    c.need(c.text("pad_mode") in _PAD_MODES, f"pad mode {c.text('pad_mode')}")
    mode, opset = _PAD_MODES[c.text("pad_mode")]
    c.need_opset(opset)
    pads = c.ints([*widths[::2], *widths[1::2]])
    value = [c.number(c.attr("pad_value"), c.out.dtype)] if mode == "constant" else []
    return c.op("Pad", c.x[0], pads, *value, mode=mode)


def _pixel_shuffle(c: Call) -> str:
    c.need(len(c.types[0].shape) == 4, "pixel shuffle of other than 4 axes")
    return c.op("DepthToSpace", c.x[0], blocksize=c.integer("upscale_factor"), mode="CRD")


def _trilu(upper: int) -> Maker:
    def make(c: Call) -> str:
        c.need_opset(14)
        return c.op("Trilu", c.x[0], c.ints(c.integer("arg1")), upper=upper)

    return make


# -- constants ---------------------------------------------------------------------------------------------


def _filled(value: int) -> Maker:
    return lambda c: c.op("Expand", c.number(value, c.out.dtype), c.ints(c.out.shape))


def _full(c: Call) -> str:
    """The fill value is the last tensor: its only input, or the second of full_like."""
    c.need(c.types and c.types[-1].size == 1 and "arg1" not in c.node.attrs, "a fill value that is no tensor")
    value = c.reshape(c.cast(c.x[-1], c.types[-1].dtype, c.out.dtype), ())
    return c.op("Expand", value, c.ints(c.out.shape))


def _arange(c: Call) -> str:
    bounds = [c.real(name) if _is_float(c.out.dtype) else c.integer(name) for name in ("arg0", "arg1", "arg2")]
    values = np.arange(*bounds).astype(np_dtype(c.out.dtype))
    c.need(values.shape == c.out.shape, "an arange whose bounds do not fit its shape")
    return c.array(values)


def _eye(c: Call) -> str:
    offset = c.integer("arg1" if c.node.op == "eye_like" else "arg2")
    return c.array(np.eye(*c.out.shape, offset, dtype=np_dtype(c.out.dtype)))


def _size(c: Call) -> str:
    return c.number(c.types[0].size, c.out.dtype)


def _one_hot(c: Call) -> str:
    """Compared with 0 ... depth-1: unlike ONNX OneHot it does not wrap negative indices."""
    rank, dtype = len(c.out.shape), c.types[0].dtype
    axis = c.integer("axis") % rank
    index = c.reshape(c.x[0], (*c.out.shape[:axis], 1, *c.out.shape[axis + 1 :]))
    classes = np.arange(c.integer("depth"), dtype=np_dtype(dtype)).reshape(-1, *[1] * (rank - 1 - axis))
    on, off = c.number(c.attr("arg1"), c.out.dtype), c.number(c.attr("arg2"), c.out.dtype)
    return c.op("Where", c.op("Equal", index, c.array(classes)), on, off)


# -- images ------------------------------------------------------------------------------------------------

_RESIZE_MODES = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
_COORDINATES = frozenset("half_pixel pytorch_half_pixel align_corners asymmetric tf_crop_and_resize".split())
_ROUNDINGS = frozenset("round_prefer_floor round_prefer_ceil floor ceil".split())


def _resize(c: Call) -> str:
    mode, coordinates = c.text("method"), c.text("coordinate_transformation_mode")
    rank = len(c.out.shape)
    c.need(c.text("layout") in _DATA_LAYOUTS, f"layout {c.text('layout')}")
    c.need(mode in _RESIZE_MODES, f"method {mode}")
    c.need(coordinates in _COORDINATES, f"coordinates {coordinates}")
    c.need(c.out.dtype == c.types[0].dtype, "a resize that changes the dtype")
    attrs: dict[str, OnnxAttr] = {"mode": _RESIZE_MODES[mode], "coordinate_transformation_mode": coordinates}
    if mode == "nearest_neighbor":
        c.need(c.text("rounding_method") in _ROUNDINGS, f"rounding {c.text('rounding_method')!r}")
        attrs["nearest_mode"] = c.text("rounding_method")
    if mode == "cubic":
        attrs["cubic_coeff_a"] = c.real("cubic_alpha")
        attrs["exclude_outside"] = c.integer("cubic_exclude")
    roi = ""
    if coordinates == "tf_crop_and_resize":
        region = c.attr("roi")
        c.need(rank == 4 and isinstance(region, tuple) and len(region) == 4, "a crop of other than 4 axes")
        bounds = list(region) if isinstance(region, tuple) else []
        roi = c.array(np.array([0, 0, *bounds[:2], 1, 1, *bounds[2:]], np.float32))
        attrs["extrapolation_value"] = c.real("extrapolation_value")
    return c.op("Resize", c.x[0], roi, "", c.ints(c.out.shape), **attrs)


_GRID_MODES = {"bilinear": ("bilinear", "linear"), "nearest": ("nearest", "nearest"), "bicubic": ("bicubic", "cubic")}


def _grid_sample(c: Call) -> str:
    """Relax wants the coordinates on axis 1 of the grid, ONNX on the last; names changed in operator set 20."""
    rank, mode = len(c.out.shape), c.text("method")
    c.need(c.text("layout") in _DATA_LAYOUTS and mode in _GRID_MODES, f"method {mode}")
    c.need_opset(16 if rank == 4 else 20)
    grid = c.op("Transpose", c.x[1], perm=(0, *range(2, rank), 1))
    name = _GRID_MODES[mode][c.opset >= 20]
    aligned = int(bool(c.attr("align_corners")))
    return c.op("GridSample", c.x[0], grid, mode=name, padding_mode=c.text("padding_mode"), align_corners=aligned)


def _affine_grid(c: Call) -> str:
    c.need_opset(20)
    batch, rank = c.out.shape[0], len(c.out.shape)
    size = c.ints([batch, 1, *as_integers(c.attr("arg1"))])
    grid = c.op("AffineGrid", c.x[0], size, align_corners=int(bool(c.attr("align_corners"))))
    return c.op("Transpose", grid, perm=(0, rank - 1, *range(1, rank - 1)))


def _roi_align(c: Call) -> str:
    """Relax keeps the batch index in column 0 of the regions."""
    c.need_opset(16)
    c.need(c.text("layout") == "NCHW" and c.text("mode") == "avg", f"{c.text('mode')} in {c.text('layout')}")
    height, width = c.integers("pooled_size")
    batch = c.op("Squeeze", c.slice(c.x[1], 1, 0, 1), c.ints([1]))
    return c.op(
        "RoiAlign",
        c.x[0],
        c.slice(c.x[1], 1, 1, 5),
        c.op("Cast", batch, to=element_type("int64")),
        output_height=height,
        output_width=width,
        spatial_scale=c.real("spatial_scale"),
        sampling_ratio=max(c.integer("sample_ratio"), 0),
        coordinate_transformation_mode="half_pixel" if c.attr("aligned") else "output_half_pixel",
        mode="avg",
    )


def _roi_pool(c: Call) -> str:
    c.need(c.text("layout") == "NCHW", f"layout {c.text('layout')}")
    return c.op("MaxRoiPool", *c.x, pooled_shape=c.integers("pooled_size"), spatial_scale=c.real("spatial_scale"))


# -- quantisation ------------------------------------------------------------------------------------------


def _quantize(c: Call) -> str:
    c.need(c.out.dtype == c.types[2].dtype, f"gives {c.out.dtype} with a zero point of {c.types[2].dtype}")
    return c.op("QuantizeLinear", *c.x, axis=c.axis())


def _dequantize(c: Call) -> str:
    c.need(c.types[0].dtype == c.types[2].dtype, f"a zero point of {c.types[2].dtype} for {c.types[0].dtype}")
    return c.cast(c.op("DequantizeLinear", *c.x, axis=c.axis()), c.types[1].dtype, c.out.dtype)


# -- the table ---------------------------------------------------------------------------------------------

_SAME_MEANING = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Add": "add",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Div": "divide",
    "Equal": "equal",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "IsInf": "isinf",
    "IsNaN": "isnan",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Log": "log",
    "Max": "maximum",
    "Min": "minimum",
    "Mul": "multiply",
    "Neg": "negative",
    "Pow": "power",
    "Round": "round",
    "Selu": "nn.selu",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Sub": "subtract",
    "Tan": "tan",
    "Tanh": "tanh",
    "Where": "where",
}

_REDUCTIONS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}


def _table() -> dict[str, Maker]:
    table: dict[str, Maker] = {relax: _same(op) for op, relax in _SAME_MEANING.items()}
    table |= {relax: _reduce(op) for op, relax in _REDUCTIONS.items()}
    table |= {f"logical_{n.lower()}": _of_bools(n) for n in ("And", "Or", "Xor", "Not")}
    table |= {f"bitwise_{n.lower()}": _bitwise(f"Bitwise{n}") for n in ("And", "Or", "Xor", "Not")}
    table |= dict.fromkeys(("reshape", "flatten", "squeeze", "expand_dims", "nn.batch_flatten"), _reshape)
    for rank in (1, 2, 3):
        table[f"nn.conv{rank}d"] = _conv
        table[f"nn.conv{rank}d_transpose"] = _conv_transpose
        table[f"nn.max_pool{rank}d"] = _pool("MaxPool")
        table[f"nn.avg_pool{rank}d"] = _pool("AveragePool")
        table[f"nn.adaptive_avg_pool{rank}d"] = _adaptive_avg_pool
    return table | {
        "not_equal": _not_equal,
        "left_shift": _shift("LEFT"),
        "right_shift": _shift("RIGHT"),
        "rsqrt": _rsqrt,
        "square": _square,
        "trunc": _trunc,
        "isfinite": _isfinite,
        "floor_divide": _floor_divide,
        "floor_mod": _floor_mod,
        "mod": _same("Mod", fmod=1),
        "clip": _clip,
        "astype": _cast,
        "nn.relu": _relu,
        "nn.relu6": _relu6,
        "nn.leakyrelu": _leaky_relu,
        "nn.prelu": _prelu,
        "nn.gelu": _gelu,
        "nn.gelu_tanh": _gelu_tanh,
        "nn.silu": _silu,
        "nn.softplus": _softplus,
        "nn.softmax": _softmax("Softmax"),
        "nn.log_softmax": _softmax("LogSoftmax"),
        "nn.dropout": _first,
        "matmul": _matmul,
        "einsum": _einsum,
        "nn.attention": _attention,
        "nn.attention_bias": _attention,
        "nn.batch_norm": _batch_norm,
        "nn.layer_norm": _layer_norm,
        "nn.rms_norm": _rms_norm,
        "nn.instance_norm": _instance_norm,
        "nn.group_norm": _group_norm,
        "variance": _variance,
        "std": _std,
        "argmax": _arg_reduce("ArgMax"),
        "argmin": _arg_reduce("ArgMin"),
        "cumsum": _cumulate("CumSum", 11),
        "topk": _topk,
        "permute_dims": _permute,
        "concat": _concat,
        "stack": _stack,
        "split": _split,
        "strided_slice": _strided_slice,
        "flip": _flip,
        "take": _take,
        "gather_elements": _gather_elements,
        "gather_nd": _gather_nd,
        "scatter_elements": _scatter("ScatterElements"),
        "scatter_nd": _scatter("ScatterND"),
        "broadcast_to": _expand,
        "tile": _tile,
        "repeat": _repeat,
        "nn.pad": _pad,
        "nn.pixel_shuffle": _pixel_shuffle,
        "tril": _trilu(0),
        "triu": _trilu(1),
        "zeros": _filled(0),
        "zeros_like": _filled(0),
        "ones": _filled(1),
        "ones_like": _filled(1),
        "full": _full,
        "full_like": _full,
        "arange": _arange,
        "eye": _eye,
        "eye_like": _eye,
        "size": _size,
        "one_hot": _one_hot,
        "image.resize2d": _resize,
        "image.resize3d": _resize,
        "image.grid_sample": _grid_sample,
        "image.affine_grid": _affine_grid,
        "vision.roi_align": _roi_align,
        "vision.roi_pool": _roi_pool,
        "quantize": _quantize,
        "dequantize": _dequantize,
    }


MAKERS: Mapping[str, Maker] = _table()
"""The makers by Relax name (without ``relax.``)."""


def make(c: Call) -> None:
    """Write the operator's ONNX nodes. Raises Inexpressible."""
    maker = MAKERS.get(c.node.op)
    if maker is None:
        raise Inexpressible("there is no rule for it")
    c.finish(maker(c))
