"""Outputs in float64 arithmetic, which decide where a kernel and ONNX Runtime's float32 disagree by a little too much.

Sums that cancel are as wrong in the reference as anywhere. ONNX's own evaluator runs the model with every float32
replaced by float64; it is slow, and asked only in the doubtful cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from collage.frontend.read.proto_size import about_bytes
from collage.frontend.read.widen import widen
from collage.graph.dataflow import Array

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_LARGEST_BYTES = 1 << 30


def precise_run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any] | None:
    """The model's outputs, in order, in float64 arithmetic, or None where the evaluator cannot run it.

    ``feeds`` are arrays by the inputs' names. Those of float32 and narrower are widened; their values stay the same.
    """
    if about_bytes(model) > _LARGEST_BYTES:
        return None
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    widen(wide, _NARROW, TensorProto.DOUBLE)
    given = {name: _wide_array(array) for name, array in feeds.items()}
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(wide, new_ops=[PreciseConv, ConvTranspose]).run(None, given)
    except Exception:  # the evaluator may raise anything for operators and types that it does not know
        return None
    return list(found)


def _wide_array(array: Array) -> Array:
    narrow = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if narrow else array


class PreciseConv(OpRun):
    """ONNX's Conv by products of matrices; the evaluator's own one loops over pixels in Python."""

    def _run(
        self,
        x: Any,
        w: Any,
        b: Any = None,
        auto_pad: Any = None,
        dilations: Any = None,
        group: Any = None,
        kernel_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> tuple[Any]:
        rank = x.ndim - 2
        dilations, strides = dilations or [1] * rank, strides or [1] * rank
        pads = _pads(auto_pad, pads, x.shape[2:], w.shape[2:], dilations, strides)
        groups = group or 1
        padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
        spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(padded, spans, tuple(range(2, 2 + rank)))
        every = (slice(None), slice(None), *(slice(None, None, s) for s in (*strides, *dilations)))
        windows = windows[every]
        per, outs = x.shape[1] // groups, w.shape[0] // groups
        axes = list(range(2 + rank, 2 + 2 * rank))
        parts = [
            np.moveaxis(
                np.tensordot(
                    windows[:, g * per : (g + 1) * per],
                    w[g * outs : (g + 1) * outs],
                    ([1, *axes], [1, *range(2, 2 + rank)]),
                ),
                -1,
                1,
            )
            for g in range(groups)
        ]
        found = np.concatenate(parts, axis=1)
        return (found if b is None else found + b.reshape(1, -1, *[1] * rank),)


def _pads(
    auto_pad: str | None,
    pads: Sequence[int] | None,
    extents: Sequence[int],
    kernel: Sequence[int],
    dilations: Sequence[int],
    strides: Sequence[int],
) -> list[int]:
    """The pads of all axes, first at their begins and then at their ends, as in ONNX's attribute ``pads``."""
    rank = len(kernel)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return list(pads or [0] * 2 * rank) if auto_pad != "VALID" else [0] * 2 * rank
    begins, ends = [], []
    for extent, size, dilation, stride in zip(extents, kernel, dilations, strides, strict=True):
        total = max(0, (-(-extent // stride) - 1) * stride + (size - 1) * dilation + 1 - extent)
        small, large = total // 2, total - total // 2
        begins.append(small if auto_pad == "SAME_UPPER" else large)
        ends.append(large if auto_pad == "SAME_UPPER" else small)
    return [*begins, *ends]


class ConvTranspose(OpRun):
    """ONNX's ConvTranspose, one product of matrices for each position in the kernel."""

    def _run(
        self,
        x: Any,
        w: Any,
        b: Any = None,
        auto_pad: Any = None,
        dilations: Any = None,
        group: Any = None,
        kernel_shape: Any = None,
        output_padding: Any = None,
        output_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> tuple[Any]:
        rank = x.ndim - 2
        dilations, strides = dilations or [1] * rank, strides or [1] * rank
        extra = output_padding or [0] * rank
        if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            raise NotImplementedError("output shapes that are given")
        pads = pads or [0] * 2 * rank
        groups = group or 1
        per, outs = x.shape[1] // groups, w.shape[1]
        full = [
            (n - 1) * s + (k - 1) * d + 1 + e
            for n, s, k, d, e in zip(x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True)
        ]
        found = np.zeros((x.shape[0], groups * outs, *full), x.dtype)
        for place in np.ndindex(*w.shape[2:]):
            where = tuple(
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(place, dilations, x.shape[2:], strides, strict=True)
            )
            for g in range(groups):
                tap = (slice(g * per, (g + 1) * per), slice(None), *place)
                part = np.moveaxis(np.tensordot(x[:, g * per : (g + 1) * per], w[tap], ([1], [0])), -1, 1)
                to = (slice(None), slice(g * outs, (g + 1) * outs), *where)
                found[to] += part
        inner = (slice(p, n - q) for p, q, n in zip(pads[:rank], pads[rank:], full, strict=True))
        within = (slice(None), slice(None), *inner)
        found = found[within]
        return (found if b is None else found + b.reshape(1, -1, *[1] * rank),)
