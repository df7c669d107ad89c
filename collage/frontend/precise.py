"""Outputs in float64 arithmetic, which decide where a kernel and ONNX Runtime's float32 disagree by a little too much.

Sums that cancel are as wrong in the reference as anywhere. ONNX's own evaluator runs the model with every float32
replaced by float64; it is slow, and asked only in the doubtful cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
_ALL = (slice(None), slice(None))


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
    """ONNX's Conv, one product of matrices for each position in the kernel; onnx's own loops over pixels in Python."""

    def _run(self, x: Any, w: Any, b: Any = None, **given: Any) -> tuple[Any]:
        rank = x.ndim - 2
        dilations, strides = given.get("dilations") or [1] * rank, given.get("strides") or [1] * rank
        spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
        pads = _pads(given.get("auto_pad"), given.get("pads"), x.shape[2:], spans, strides)
        padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
        extents = [(n - span) // s + 1 for n, span, s in zip(padded.shape[2:], spans, strides, strict=True)]
        found = np.zeros((x.shape[0], w.shape[0], *extents), x.dtype)
        for tap, places in _taps(w.shape[2:], dilations, extents, strides):
            for ins, outs in _groups(given.get("group") or 1, x.shape[1], w.shape[0]):
                part = np.tensordot(padded[places][:, ins], w[tap][outs], ([1], [1]))
                found[:, outs] += np.moveaxis(part, -1, 1)
        return (_biased(found, b),)


class ConvTranspose(OpRun):
    """ONNX's ConvTranspose, one product of matrices for each position in the kernel."""

    def _run(self, x: Any, w: Any, b: Any = None, **given: Any) -> tuple[Any]:
        rank = x.ndim - 2
        dilations, strides = given.get("dilations") or [1] * rank, given.get("strides") or [1] * rank
        extra, pads = given.get("output_padding") or [0] * rank, given.get("pads") or [0] * 2 * rank
        if given.get("output_shape") or given.get("auto_pad") in ("SAME_UPPER", "SAME_LOWER"):
            raise NotImplementedError("output shapes that are given")
        full = [
            (n - 1) * s + (k - 1) * d + 1 + e
            for n, s, k, d, e in zip(x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True)
        ]
        groups = given.get("group") or 1
        found = np.zeros((x.shape[0], groups * w.shape[1], *full), x.dtype)
        for tap, places in _taps(w.shape[2:], dilations, x.shape[2:], strides):
            for ins, outs in _groups(groups, x.shape[1], found.shape[1]):
                part = np.tensordot(x[:, ins], w[tap][ins], ([1], [0]))
                found[places][:, outs] += np.moveaxis(part, -1, 1)
        within = (slice(p, n - q) for p, q, n in zip(pads[:rank], pads[rank:], full, strict=True))
        inner = (*_ALL, *within)
        return (_biased(found[inner], b),)


def _taps(
    kernel: Sequence[int], dilations: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> Iterator[tuple[Any, Any]]:
    """Indices of each position in the kernel, and of the ``extents`` places that it meets on the larger side."""
    for tap in np.ndindex(*kernel):
        axes = zip(tap, dilations, extents, strides, strict=True)
        yield (*_ALL, *tap), (*_ALL, *(slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in axes))


def _groups(count: int, ins: int, outs: int) -> Iterator[tuple[slice, slice]]:
    """The channels that each group reads, and those that it makes."""
    for g in range(count):
        yield (
            slice(g * ins // count, (g + 1) * ins // count),
            slice(g * outs // count, (g + 1) * outs // count),
        )


def _biased(found: Any, bias: Any) -> Any:
    return found if bias is None else found + bias.reshape(1, -1, *[1] * (found.ndim - 2))


def _pads(
    auto_pad: str | None,
    pads: Sequence[int] | None,
    extents: Sequence[int],
    spans: Sequence[int],
    strides: Sequence[int],
) -> list[int]:
    """The pads of all axes, first at their begins and then at their ends, as in ONNX's attribute ``pads``."""
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return [0] * 2 * len(spans) if auto_pad == "VALID" or not pads else list(pads)
    totals = [
        max(0, (-(-extent // stride) - 1) * stride + span - extent)
        for extent, span, stride in zip(extents, spans, strides, strict=True)
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*small, *large] if auto_pad == "SAME_UPPER" else [*large, *small]
