"""Transposed convolutions to few channels, such as a generator's last; see `narrow_transposed.cpp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.conv import Conv, scaled
from collage.backends.chains.epilogue import Epilogue, read_epilogue
from collage.backends.native_kernels.algorithm import ROWS, ChainAlgorithm, shared_or_whole
from collage.backends.native_kernels.geometry import shape_struct, strides
from collage.backends.native_kernels.kernel import CKernel
from collage.backends.native_kernels.limits import narrow_limits
from collage.backends.native_kernels.task import NativeTask
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST, PLAIN
from collage.kernel.options import BuildOptions, Variant
from collage.native.packed import Packed

_MOST_OUTPUTS = 4
_LANES, _VECTORS = 16, 2
_CHUNK_BYTES = 500_000
"""Rows of the input at a time, with pixels innermost: the best on a core with 1 MB of L2."""


def _row_floats(inside: int, outside: int) -> int:
    unit = _LANES * _VECTORS
    return -(-max(-(-outside // 2), inside) // unit) * unit + 2 * _LANES


def _scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """The size of the memory that a share keeps rows in (``collage_narrow_transposed_scratch``)."""
    row_floats = _row_floats(numbers["in"][1], numbers["out"][1])
    return 4 * int(numbers["row_chunk"] + 2) * int(numbers["inputs"]) * row_floats


_Shape = shape_struct(
    *("batch", "inputs", "outputs"),
    *(("in", 2), ("out", 2), ("row_pad", 2), ("column_pad", 2)),
    *("from_batch", "from_block", "from_row", "from_pixel", "row_chunk", "activation", "shares"),
)
"""``collage_narrow_transposed_shape``."""


class NarrowTransposed(ChainAlgorithm):
    """Takes transposed 4x4 windows at distances of 2, from channels innermost to at most 4 channels, plain."""

    name = "narrow_transposed"
    roots = frozenset({"nn.conv2d_transpose"})
    kernel = CKernel(
        *("collage_narrow_transposed", _Shape, narrow_limits, ("weights", "bias")),
        residual=False,
        scratch_bytes=_scratch_bytes,
    )

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Both layouts with channels innermost for the input, split by rows, and one thread alone for small work."""
        conv, _ = _checked(task)
        splits = shared_or_whole(ROWS, conv.flop, build)
        layouts = BLOCKED, CHANNELS_LAST
        return [Variant((layout,), (PLAIN,), split) for layout in layouts for split in splits]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, weights in the order in which they are read, and the bias."""
        variant = build.variant
        conv, epilogue = _checked(task)
        conv = scaled(conv, task.folded.scale, task.folded.bias)
        batch, inputs, *inside = conv.src
        outputs, *outside = conv.dst[1:]
        pads = [[_before(pad, phase) for phase in (0, 1)] for pad in conv.pad_begin]
        row_floats = _row_floats(inside[1], outside[1])
        shares = build.threads if variant.split == ROWS else 1
        pairs = -(-outside[0] // 2)
        image, block, _, row, pixel = strides(inputs, (1, inside[0], inside[1]), variant.inputs[0])
        numbers = {
            "batch": batch,
            "inputs": inputs,
            "outputs": outputs,
            "in": inside,
            "out": outside,
            "row_pad": pads[0],
            "column_pad": pads[1],
            **{"from_batch": image, "from_block": block, "from_row": row, "from_pixel": pixel},
            "row_chunk": max(2, min(-(-pairs // shares), _CHUNK_BYTES // (4 * inputs * row_floats))),
            "activation": epilogue.activation,
            "shares": shares,
            "data": task.place(task.chain.root.inputs[0]),
            "low": epilogue.low,
            "high": epilogue.high,
        }
        bias = np.zeros(outputs, np.float32) if conv.bias is None else conv.bias
        return Packed(numbers, {"weights": _packed_weights(conv), "bias": bias})


def _checked(task: NativeTask) -> tuple[Conv, Epilogue]:
    """The convolution and what follows its linear part. Raises UnsupportedError when the kernel does not take them."""
    chain, conv = task.chain, task.conv
    assert conv is not None
    if conv.groups > 1 or conv.weights.shape[2:] != (4, 4) or conv.strides != (2, 2) or conv.dilation != (1, 1):
        raise UnsupportedError(
            f"the window is {conv.weights.shape[2:]} at distances of {conv.strides}, or it is grouped or dilated"
        )
    if conv.dst[1] > _MOST_OUTPUTS:
        raise UnsupportedError(f"{conv.dst[1]} output channels are not few")
    if conv.src[1] % BLOCK:
        raise UnsupportedError(f"{conv.src[1]} input channels are no multiple of {BLOCK}")
    if max(conv.pad_begin) > 2:
        raise UnsupportedError(f"there is a padding of {conv.pad_begin}")
    if chain.graph.is_constant(chain.root.inputs[0]):
        raise UnsupportedError("the data is a constant")
    epilogue = read_epilogue(chain, task.folded.epilogue, conv.dst)
    if epilogue.residual is not None:
        raise UnsupportedError("the kernel adds no residual")
    return conv, epilogue


def _before(pad: int, phase: int) -> int:
    """How far before input j the inputs begin that output 2 j + phase is made of."""
    return 1 - (phase + pad - (phase + pad) % 2) // 2


def _packed_weights(conv: Conv) -> Floats:
    """Weights (O, I, 4, 4) as [row phase][input][row][column phase][column][output]."""
    first, second = ([[(p + pad) % 2 + 2, (p + pad) % 2] for p in (0, 1)] for pad in conv.pad_begin)
    windows = conv.weights[:, :, first][..., second]  # its axes: O, I, row phase, row, column phase, column
    return np.ascontiguousarray(windows.transpose(2, 1, 3, 4, 5, 0))
