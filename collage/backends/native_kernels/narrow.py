"""Transposed convolutions to few channels, such as a generator's last; see `narrow_transposed.cpp`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Floats
from collage.backends.chains.conv import Conv, read_conv, scaled
from collage.backends.chains.ending import Ending, read_ending
from collage.backends.chains.fold import fold
from collage.backends.native_kernels.algorithm import Algorithm
from collage.backends.native_kernels.convolution import SMALL_FLOP
from collage.backends.native_kernels.kernel import SharedKernel
from collage.backends.native_kernels.limits import narrow_limits
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST, PLAIN, Storage
from collage.kernel.options import Variant
from collage.native import NativeKernel
from collage.native.packed import Packed

ROWS, WHOLE = "rows", ""

_MOST_OUTPUTS = 4
_CHUNK_BYTES = 500_000
"""Of the input's rows with pixels innermost: half of a core's L2."""
_LANES, _VECTORS = 16, 2


@dataclass(frozen=True)
class _Task:
    conv: Conv
    ending: Ending


class NarrowTransposed(Algorithm):
    """Transposed 4x4 windows at distances of 2, from channels innermost to at most 4 channels, plain."""

    name = "narrow_transposed"
    roots = frozenset({"nn.conv2d_transpose"})

    def variants(self, chain: Chain, threads: int) -> Sequence[Variant]:
        """From either layout with channels innermost, split by rows; one thread alone for small work."""
        task = _read(chain)
        splits = [ROWS] if threads > 1 else []
        if threads == 1 or task.conv.flop < SMALL_FLOP:
            splits.append(WHOLE)
        layouts = BLOCKED, CHANNELS_LAST
        return [Variant((layout,), (PLAIN,), split) for layout in layouts for split in splits]

    def pack(self, chain: Chain, variant: Variant, threads: int) -> Packed:
        """The shape of the kernel, weights in the order in which they are read, and the bias."""
        task = _read(chain)
        conv, ending = task.conv, task.ending
        batch, inputs, *inside = conv.src
        outputs, *outside = conv.dst[1:]
        pads = [[_before(pad, phase) for phase in (0, 1)] for pad in conv.pad_begin]
        row_floats = _row_floats(inside[1], outside[1])
        shares = threads if variant.split == ROWS else 1
        pairs = -(-outside[0] // 2)
        numbers = {
            "batch": batch,
            "inputs": inputs,
            "outputs": outputs,
            "in": inside,
            "out": outside,
            "row_pad": pads[0],
            "column_pad": pads[1],
            **_distances(inputs, inside, variant.inputs[0]),
            "row_chunk": max(2, min(-(-pairs // shares), _CHUNK_BYTES // (4 * inputs * row_floats))),
            "activation": ending.activation,
            "shares": shares,
            "data": chain.subgraph.inputs.index(chain.root.inputs[0]),
            "low": ending.low,
            "high": ending.high,
        }
        bias = np.zeros(outputs, np.float32) if conv.bias is None else conv.bias
        return Packed(numbers, {"weights": _packed_weights(conv), "bias": bias})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel; its shares read the same weights, and work in memory of their own."""
        return SharedKernel(
            "collage_narrow_transposed",
            _Shape,
            packed,
            threads,
            limits=narrow_limits,
            residual=False,
            constants=[packed.arrays["weights"], packed.arrays["bias"]],
            scratch_bytes=scratch_bytes,
        )


def _read(chain: Chain) -> _Task:
    """Raises UnsupportedError when the chain is none that the kernel takes."""
    conv = read_conv(chain.graph, chain.root)
    if (
        conv.groups > 1
        or conv.weights.shape[2:] != (4, 4)
        or conv.strides != (2, 2)
        or conv.dilation != (1, 1)
    ):
        raise UnsupportedError(
            f"a window of {conv.weights.shape[2:]} at distances of {conv.strides}, grouped or dilated"
        )
    if conv.dst[1] > _MOST_OUTPUTS:
        raise UnsupportedError(f"{conv.dst[1]} output channels are not few")
    if conv.src[1] % BLOCK:
        raise UnsupportedError(f"{conv.src[1]} input channels, which are no multiple of {BLOCK}")
    if max(conv.pad_begin) > 2:
        raise UnsupportedError(f"a padding of {conv.pad_begin}")
    if chain.graph.is_constant(chain.root.inputs[0]):
        raise UnsupportedError("convolution of a constant")
    folded = fold(chain, conv.dst, 1)
    ending = read_ending(chain, folded.after, conv.dst)
    if ending.residual is not None:
        raise UnsupportedError("a residual")
    return _Task(scaled(conv, folded.scale, folded.bias), ending)


def _before(pad: int, phase: int) -> int:
    """Output 2 j + phase is made of the inputs from j minus this on."""
    return 1 - (phase + pad - (phase + pad) % 2) // 2


def _packed_weights(conv: Conv) -> Floats:
    """(O, I, 4, 4) as [row phase][input][row][column phase][column][output]."""
    first, second = ([[(p + pad) % 2 + 2, (p + pad) % 2] for p in (0, 1)] for pad in conv.pad_begin)
    windows = conv.weights[:, :, first][..., second]  # O, I, row phase, row, column phase, column
    return np.ascontiguousarray(windows.transpose(2, 1, 3, 4, 5, 0))


def _row_floats(inside: int, outside: int) -> int:
    unit = _LANES * _VECTORS
    return -(-max(-(-outside // 2), inside) // unit) * unit + 2 * _LANES


def _distances(channels: int, spatial: Sequence[int], layout: Storage) -> dict[str, int]:
    """Floats from one image, block of channels, row and pixel of the input to the next."""
    pixel = BLOCK if layout == BLOCKED else channels
    return {
        "from_batch": math.prod(spatial) * channels,
        "from_block": math.prod(spatial) * BLOCK if layout == BLOCKED else BLOCK,
        "from_row": spatial[1] * pixel,
        "from_pixel": pixel,
    }


_Two = ctypes.c_int64 * 2
_FROM = ("from_batch", "from_block", "from_row", "from_pixel")


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "inputs", "outputs")),
        *((name, _Two) for name in ("in", "out", "row_pad", "column_pad")),
        *((name, ctypes.c_int64) for name in (*_FROM, "row_chunk", "activation", "shares")),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


def scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """What a share keeps rows in (``collage_narrow_transposed_scratch``)."""
    row_floats = _row_floats(numbers["in"][1], numbers["out"][1])
    return 4 * int(numbers["row_chunk"] + 2) * int(numbers["inputs"]) * row_floats
