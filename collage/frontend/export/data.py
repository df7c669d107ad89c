"""Makers from Relax to ONNX for operators that move or make data: shapes, slices, gathers, constants and images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collage.frontend.export.emit import (
    DATA_LAYOUTS,
    ExportedCall,
    Maker,
    OnnxAttr,
    as_integers,
)
from collage.graph.dataflow import np_dtype

_BEGIN = -(2**63)
"""The end of a backward Slice that includes element 0."""


def _reshape(c: ExportedCall) -> str:
    return c.reshape(c.x[0], c.out.shape)


def _permute(c: ExportedCall) -> str:
    rank = len(c.out.shape)
    axes = range(rank)[::-1] if c.attr("axes") is None else [a % rank for a in c.integers("axes")]
    return c.op("Transpose", c.x[0], perm=tuple(axes))


def _stack(c: ExportedCall) -> str:
    axis = (0 if c.attr("axis") is None else c.integer("axis")) % len(c.out.shape)
    each = (*c.out.shape[:axis], 1, *c.out.shape[axis + 1 :])
    return c.op("Concat", *(c.reshape(x, each) for x in c.x), axis=axis)


def _split(c: ExportedCall) -> list[str]:
    axis = c.axis()
    sizes = [t.shape[axis] for t in c.out_types]
    return c.ops("Split", len(sizes), c.x[0], c.ints(sizes), axis=axis)


def _strided_slice(c: ExportedCall) -> str:
    """Starts are wrapped and clamped here. Ends are calculated from the result's shape, so that none is ambiguous."""
    c.need(len(c.x) == 1, "slice bounds that are tensors")
    shape, rank = c.types[0].shape, len(c.types[0].shape)
    axes = [axis % rank for axis in c.integers("arg1")]
    begins = c.integers("arg2")
    strides = c.integers("arg4") if c.attr("arg4") is not None else (1,) * len(axes)
    starts, stops = [], []
    for axis, begin, stride in zip(axes, begins, strides, strict=True):
        extent, count = shape[axis], c.out.shape[axis]
        begin = slice(begin, None, stride).indices(extent)[0]
        stop = begin + count * stride
        starts.append(begin if count else 0)
        stops.append((stop if stop >= 0 else _BEGIN) if count else 0)
    steps = [stride if c.out.shape[axis] else 1 for axis, stride in zip(axes, strides, strict=True)]
    return c.op("Slice", c.x[0], c.ints(starts), c.ints(stops), c.ints(axes), c.ints(steps))


def _take(c: ExportedCall) -> str:
    """An index out of range is an error in ONNX, so a Gather agrees with all modes but "nan" on valid ones."""
    c.need(c.text("mode") in ("fast", "wrap", "clip"), f"out-of-range mode {c.text('mode')}")
    index = c.ints(c.integer("arg1")) if "arg1" in c.node.attrs else c.x[1]
    if c.attr("axis") is None:
        return c.op("Gather", c.reshape(c.x[0], (c.types[0].size,)), index, axis=0)
    return c.op("Gather", c.x[0], index, axis=c.axis())


_SCATTER_REDUCTIONS = {
    "update": ("none", 11),
    "add": ("add", 16),
    "mul": ("mul", 16),
    "min": ("min", 18),
    "max": ("max", 18),
}


def _scatter(op: str) -> Maker:
    def make(c: ExportedCall) -> str:
        kind = c.text("reduction")
        c.need(kind in _SCATTER_REDUCTIONS, f"reduction {kind}")
        reduction, opset = _SCATTER_REDUCTIONS[kind]
        c.need_opset(opset)
        attrs: dict[str, OnnxAttr] = {} if kind == "update" else {"reduction": reduction}
        if op == "ScatterElements":
            attrs["axis"] = c.axis()
        return c.op(op, *c.x, **attrs)

    return make


def _tile(c: ExportedCall) -> str:
    shape, repeats, rank = c.types[0].shape, c.integers("repeats"), len(c.out.shape)
    x = c.x[0] if len(shape) == rank else c.reshape(c.x[0], (*[1] * (rank - len(shape)), *shape))
    return c.op("Tile", x, c.ints([1] * (rank - len(repeats)) + list(repeats)))


_PAD_MODES = {
    "constant": ("constant", 13),
    "reflect": ("reflect", 13),
    "replicate": ("edge", 13),
    "circular": ("wrap", 19),
}


def _pad(c: ExportedCall) -> str:
    """Relax has the widths before and after for each axis in turn. ONNX has all widths before, then all after."""
    widths = c.integers("pad_width")
    c.need(c.text("pad_mode") in _PAD_MODES, f"pad mode {c.text('pad_mode')}")
    mode, opset = _PAD_MODES[c.text("pad_mode")]
    c.need_opset(opset)
    pads = c.ints([*widths[::2], *widths[1::2]])
    value = [c.number(c.attr("pad_value"), c.out.dtype)] if mode == "constant" else []
    return c.op("Pad", c.x[0], pads, *value, mode=mode)


def _trilu(upper: int) -> Maker:
    def make(c: ExportedCall) -> str:
        c.need_opset(14)
        return c.op("Trilu", c.x[0], c.ints(c.integer("arg1")), upper=upper)

    return make


def _filled(value: int) -> Maker:
    return lambda c: c.op("Expand", c.number(value, c.out.dtype), c.ints(c.out.shape))


def _full(c: ExportedCall) -> str:
    c.need(c.types and c.types[0].size == 1, "a fill value that is no tensor")
    value = c.reshape(c.cast(c.x[0], c.types[0].dtype, c.out.dtype), ())
    return c.op("Expand", value, c.ints(c.out.shape))


def _eye(c: ExportedCall) -> str:
    rows, columns = c.out.shape
    return c.array(np.eye(rows, columns, c.integer("arg1"), dtype=np_dtype(c.out.dtype)))


def _one_hot(c: ExportedCall) -> str:
    """The indices are compared with 0 ... depth-1, since ONNX's OneHot would wrap negative indices."""
    rank, dtype = len(c.out.shape), c.types[0].dtype
    axis = c.integer("axis") % rank
    index = c.reshape(c.x[0], (*c.out.shape[:axis], 1, *c.out.shape[axis + 1 :]))
    classes = np.arange(c.integer("depth"), dtype=np_dtype(dtype)).reshape(-1, *[1] * (rank - 1 - axis))
    on, off = c.number(c.attr("arg1"), c.out.dtype), c.number(c.attr("arg2"), c.out.dtype)
    return c.op("Where", c.op("Equal", index, c.array(classes)), on, off)


_RESIZE_MODES = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _resize(c: ExportedCall) -> str:
    mode, coordinates = c.text("method"), c.text("coordinate_transformation_mode")
    rank = len(c.out.shape)
    c.need(c.text("layout") in DATA_LAYOUTS, f"layout {c.text('layout')}")
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


_GRID_MODES = {
    "bilinear": ("bilinear", "linear"),
    "nearest": ("nearest", "nearest"),
    "bicubic": ("bicubic", "cubic"),
}


def _grid_sample(c: ExportedCall) -> str:
    """Relax has the coordinates on axis 1 of the grid, and ONNX on the last axis. Set 20 has renamed the modes."""
    rank, mode = len(c.out.shape), c.text("method")
    c.need(c.text("layout") in DATA_LAYOUTS and mode in _GRID_MODES, f"method {mode}")
    c.need_opset(16 if rank == 4 else 20)
    grid = c.op("Transpose", c.x[1], perm=(0, *range(2, rank), 1))
    name = _GRID_MODES[mode][c.opset >= 20]
    aligned = int(bool(c.attr("align_corners")))
    return c.op("GridSample", c.x[0], grid, mode=name, padding_mode=c.text("padding_mode"), align_corners=aligned)


def _affine_grid(c: ExportedCall) -> str:
    c.need_opset(20)
    batch, rank = c.out.shape[0], len(c.out.shape)
    size = c.ints([batch, 1, *as_integers(c.attr("arg1"))])
    grid = c.op("AffineGrid", c.x[0], size, align_corners=int(bool(c.attr("align_corners"))))
    return c.op("Transpose", grid, perm=(0, rank - 1, *range(1, rank - 1)))


DATA: Mapping[str, Maker] = dict.fromkeys(("reshape", "flatten", "squeeze", "expand_dims"), _reshape) | {
    "permute_dims": _permute,
    "concat": lambda c: c.op("Concat", *c.x, axis=c.axis()),
    "stack": _stack,
    "split": _split,
    "strided_slice": _strided_slice,
    "flip": lambda c: c.slice(c.x[0], c.axis(), -1, _BEGIN, -1),
    "take": _take,
    "gather_elements": lambda c: c.op("GatherElements", *c.x, axis=c.axis()),
    "gather_nd": lambda c: c.op("GatherND", *c.x, batch_dims=c.integer("batch_dims")),
    "scatter_elements": _scatter("ScatterElements"),
    "scatter_nd": _scatter("ScatterND"),
    "broadcast_to": lambda c: c.op("Expand", c.x[0], c.ints(c.out.shape)),
    "tile": _tile,
    "nn.pad": _pad,
    "tril": _trilu(0),
    "triu": _trilu(1),
    "zeros": _filled(0),
    "zeros_like": _filled(0),
    "ones_like": _filled(1),
    "full": _full,
    "eye_like": _eye,
    "size": lambda c: c.number(c.types[0].size, c.out.dtype),
    "one_hot": _one_hot,
    "image.resize2d": _resize,
    "image.resize3d": _resize,
    "image.grid_sample": _grid_sample,
    "image.affine_grid": _affine_grid,
}
"""The makers by Relax name."""
