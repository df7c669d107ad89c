"""Makers from Relax to ONNX for matrix products, convolutions, pooling, normalisation and reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage.frontend.export.emit import DATA_LAYOUTS, ExportedCall, Maker, OnnxAttr


def _matmul(c: ExportedCall) -> str:
    """The product is accumulated in the output's dtype, so the inputs are cast to it."""
    return c.op("MatMul", *(c.cast(x, t.dtype, c.out.dtype) for x, t in zip(c.x, c.types, strict=True)))


def _pads(c: ExportedCall, rank: int) -> tuple[int, ...]:
    padding = c.integers("padding")
    return padding if len(padding) == 2 * rank else padding * (2 * rank // len(padding))


def _windowed(c: ExportedCall, kernel_layouts: Sequence[str]) -> dict[str, OnnxAttr]:
    rank = len(c.types[0].shape) - 2
    data, kernel = c.text("data_layout"), c.text("kernel_layout")
    c.need(data in DATA_LAYOUTS and c.text("out_layout") in ("", data), f"data layout {data}")
    c.need(kernel in kernel_layouts, f"kernel layout {kernel}")
    c.need(c.out.dtype == c.types[0].dtype, f"gives {c.out.dtype} for {c.types[0].dtype}")
    return {
        "kernel_shape": c.types[1].shape[2:],
        "strides": c.integers("strides"),
        "pads": _pads(c, rank),
        "dilations": c.integers("dilation"),
        "group": c.integer("groups"),
    }


def _conv(c: ExportedCall) -> str:
    return c.op("Conv", *c.x, **_windowed(c, ("OIW", "OIHW", "OIDHW")))


def _conv_transpose(c: ExportedCall) -> str:
    attrs = _windowed(c, ("IOW", "IOHW", "IODHW"))
    return c.op("ConvTranspose", *c.x, output_padding=c.integers("output_padding"), **attrs)


def _pool(op: str) -> Maker:
    def make(c: ExportedCall) -> str:
        layout, data = c.text("layout"), c.types[0].shape
        c.need(layout in DATA_LAYOUTS and c.text("out_layout") in ("", layout), f"layout {layout}")
        kernel, strides, dilation = c.integers("pool_size"), c.integers("strides"), c.integers("dilation")
        pads = _pads(c, len(kernel))
        attrs: dict[str, OnnxAttr] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
        ends = [(c.out.shape[a + 2] - 1) * strides[a] + (k - 1) * dilation[a] + 1 for a, k in enumerate(kernel)]
        padded = [data[a + 2] + pads[a] + pads[a + len(kernel)] for a in range(len(kernel))]
        if any(end > extent for end, extent in zip(ends, padded, strict=True)):
            # the last window reaches beyond the padding
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


def _batch_norm(c: ExportedCall) -> list[str | None]:
    c.need(not c.attr("training"), "batch normalisation in training")
    c.need(c.axis() == 1, "the channels are not on axis 1")
    c.need(c.attr("center") and c.attr("scale"), "batch normalisation without centre or scale")
    return [c.op("BatchNormalization", *c.x, epsilon=c.real("epsilon")), c.x[3], c.x[4]]


def _trailing(c: ExportedCall, axes: tuple[int, ...]) -> None:
    rank = len(c.types[0].shape)
    c.need(
        axes and axes == tuple(range(rank - len(axes), rank)),
        "normalises over axes that are not the last ones",
    )


def _layer_norm(c: ExportedCall) -> str:
    c.need_opset(17)
    axes = c.axes("axes")
    _trailing(c, axes)
    return c.op("LayerNormalization", *c.x, axis=axes[0], epsilon=c.real("epsilon"))


def _rms_norm(c: ExportedCall) -> str:
    """The result is x / sqrt(mean(x²) + ε) · weight, calculated in at least 32 bits."""
    axes, dtype = c.axes("axes"), c.out.dtype
    _trailing(c, axes)
    wide = "float64" if dtype == "float64" else "float32"
    x = c.cast(c.x[0], dtype, wide)
    mean = c.reduce("ReduceMean", c.op("Mul", x, x), axes, True)
    root = c.op("Sqrt", c.op("Add", mean, c.number(c.real("epsilon"), wide)))
    return c.cast(c.op("Mul", c.op("Div", x, root), c.cast(c.x[1], dtype, wide)), wide, dtype)


def _reduction_axes(c: ExportedCall) -> tuple[int, ...]:
    c.need(c.attr("axis") != (), "a reduction over no axes")
    return c.axes()


def _reduce(op: str) -> Maker:
    return lambda c: c.reduce(op, c.x[0], _reduction_axes(c), bool(c.attr("keepdims")))


def _variance(c: ExportedCall) -> str:
    axes = _reduction_axes(c)
    centred = c.op("Sub", c.x[0], c.reduce("ReduceMean", c.x[0], axes, True))
    return c.reduce("ReduceMean", c.op("Mul", centred, centred), axes, bool(c.attr("keepdims")))


def _arg_reduce(op: str) -> Maker:
    def make(c: ExportedCall) -> str:
        if c.attr("axis") is not None:
            index = c.op(op, c.x[0], axis=c.axis(), keepdims=int(bool(c.attr("keepdims"))))
        else:
            flat = c.reshape(c.x[0], (c.types[0].size,))
            index = c.reshape(c.op(op, flat, axis=0, keepdims=0), c.out.shape)
        return c.cast(index, "int64", c.out.dtype)

    return make


def _cumulate(op: str, opset: int) -> Maker:
    def make(c: ExportedCall) -> str:
        c.need_opset(opset)
        x = c.x[0] if c.attr("axis") is not None else c.reshape(c.x[0], c.out.shape)
        axis = c.ints(c.axis() if c.attr("axis") is not None else 0)
        return c.op(op, c.cast(x, c.types[0].dtype, c.out.dtype), axis, exclusive=int(bool(c.attr("exclusive"))))

    return make


def _topk(c: ExportedCall) -> list[str | None]:
    axis, kind = c.axis(), c.text("ret_type")
    k = c.out.shape[axis]
    values, index = c.ops("TopK", 2, c.x[0], c.ints([k]), axis=axis, largest=int(bool(c.attr("largest"))), sorted=1)
    if kind == "values":
        return [values]
    index = c.cast(index, "int64", c.out_types[-1].dtype)
    return [index] if kind == "indices" else [values, index]


def _table() -> dict[str, Maker]:
    table: dict[str, Maker] = {name: _reduce(f"Reduce{name.title()}") for name in ("sum", "mean", "max", "min", "prod")}
    for rank in (1, 2, 3):
        table[f"nn.conv{rank}d"] = _conv
        table[f"nn.conv{rank}d_transpose"] = _conv_transpose
        table[f"nn.max_pool{rank}d"] = _pool("MaxPool")
        table[f"nn.avg_pool{rank}d"] = _pool("AveragePool")
    return table | {
        "matmul": _matmul,
        "einsum": lambda c: c.op("Einsum", *c.x, equation=c.text("subscripts")),
        "nn.batch_norm": _batch_norm,
        "nn.layer_norm": _layer_norm,
        "nn.rms_norm": _rms_norm,
        "variance": _variance,
        "argmax": _arg_reduce("ArgMax"),
        "argmin": _arg_reduce("ArgMin"),
        "cumsum": _cumulate("CumSum", 11),
        "topk": _topk,
    }


COMPUTE: Mapping[str, Maker] = _table()
"""The makers by Relax name."""
