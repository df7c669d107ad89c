"""How far each kernel goes in its buffers: what is checked of an artifact's numbers before C++ gets them.

An artifact comes from a file, and the kernels believe what it says. Each function takes the numbers of one C struct
(its header tells what they mean) and the kernel's own arrays, and gives the floats that the kernel reads of its data
and writes of its result. It raises MalformedError if a number makes no sense, or an array is too short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from collage.core.typed import MalformedError, typed
from collage.graph.storage import BLOCK
from collage.native.reach import at_least, check_floats, one_of, reach

Arrays = Mapping[str, Any]
Numbers = Mapping[str, Any]

_MOST_PIECES = 1 << 16
_MOST_FLOATS = 1 << 44
_MOST_WORK = 1 << 62


@dataclass(frozen=True)
class Needs:
    """Floats of the data that are read, and of the result that are written. A residual lies like the result."""

    data: float
    result: float


Limits = Callable[[Numbers, Arrays], Needs]


def check_shares(numbers: Numbers, threads: int) -> None:
    """Raises MalformedError unless there are at most as many shares as threads, each in the same number of pieces."""
    pieces, shares = typed(int, numbers.get("pieces", 1)), typed(int, numbers["shares"])
    if not 1 <= pieces <= _MOST_PIECES or shares % pieces or not 1 <= shares // pieces <= threads:
        raise MalformedError(f"{shares} shares in {pieces} pieces, on {threads} threads")


def _check_work(numbers: Numbers, *extents: int) -> None:
    """Raise MalformedError if the kernel's own count of so many pieces of work would overflow.

    A step of zero lets many of them be in a small buffer.
    """
    if math.prod(extents) * typed(int, numbers["shares"]) >= _MOST_WORK:
        raise MalformedError(f"{' x '.join(map(str, extents))} pieces of work are too many")


def direct_limits(n: Numbers, arrays: Arrays) -> Needs:
    """The limits of the kernel in `direct_conv.h`."""
    at_least(1, n, "batch", "inputs", "outputs", "in", "out", "window", "stride")
    at_least(0, n, "pad", "from", "to")
    one_of(range(4), n, "reach")
    _check_work(n, n["batch"], *n["out"], -(-n["outputs"] // BLOCK))
    vectors, targets = -(-n["inputs"] // BLOCK), -(-n["outputs"] // BLOCK)
    begin, sources = typed(list[int], n["begin"]), typed(list[int], n["sources"])
    counts = [after - before for before, after in pairwise(begin)]
    fixed = {0: 1, 1: 1, 2: 2}.get(n["reach"])
    if len(counts) != targets or begin[0] or any(c < 1 or c != (fixed or c) for c in counts):
        raise MalformedError(f"{targets} vectors of outputs see {counts} sources")
    if len(sources) < begin[-1] or any(not 0 <= each >> 2 < vectors for each in sources):
        raise MalformedError(f"sources beyond {vectors} vectors of inputs")
    for first, end in pairwise(begin):
        if fixed and len({each >> 2 for each in sources[first:end]}) > 1:
            raise MalformedError("an output sees several vectors where it should see one")
    rotations = 1 if n["reach"] == 0 else 4
    planes, rows, columns = n["window"]
    check_floats("weights", arrays["weights"], begin[-1] * planes * rows * columns * rotations * BLOCK)
    check_floats("bias", arrays["bias"], targets * BLOCK)
    whole = targets * BLOCK if n["blocked"] else n["outputs"]
    return Needs(
        _vectors_reach(n["batch"], n["inputs"], n["in"], n["from"]),
        _vectors_reach(n["batch"], whole, n["out"], n["to"]),
    )


def _vectors_reach(batch: int, channels: int, spatial: Sequence[int], steps: Sequence[int]) -> int:
    """The floats that pixels reach over whose channels lie in vectors, of which the last one may be shorter.

    ``steps`` are those of ``collage_steps``.
    """
    per_batch, vector, *others = steps
    walks = [(batch, per_batch), *zip(spatial, others, strict=True)]
    full, rest = divmod(channels, BLOCK)
    found = [reach(*walks, (full, vector), last=BLOCK)] if full else []
    return max([*found, *([reach(*walks, (full + 1, vector), last=rest)] if rest else [])])


def winograd_limits(n: Numbers, arrays: Arrays) -> Needs:
    """The limits of the kernel in `winograd.h`."""
    at_least(1, n, "batch", "in_blocks", "out_blocks", "in_depth", "out_depth", "depth_taps", "chunk_tiles")
    at_least(1, n, "chunk_depths")
    at_least(0, n, "pad_depth", "from", "to")
    one_of((3, 4, 5, 6), n, "points")
    if any(step % BLOCK for step in (*n["from"], *n["to"])):
        raise MalformedError("steps that are no multiples of a block")
    tile = {6: 4, 4: 2, 5: 4, 3: 2}[n["points"]]
    rows, columns = (_Axis.read(name, n[name]) for name in ("rows", "columns"))
    _check_work(n, n["batch"], rows.tiles(tile), columns.tiles(tile), n["out_depth"], n["out_blocks"])
    if n["chunk_tiles"] > max(1, rows.tiles(tile) * columns.tiles(tile)) or n["chunk_depths"] > n["out_depth"]:
        raise MalformedError(f"chunks of {n['chunk_tiles']} tiles and {n['chunk_depths']} planes")
    per_point = n["in_blocks"] * n["out_blocks"] * n["depth_taps"] * BLOCK * BLOCK
    check_floats("weights", arrays["weights"], rows.phases * columns.phases * n["points"] ** 2 * per_point)
    check_floats("bias", arrays["bias"], n["out_blocks"] * BLOCK)
    inside = n["in_depth"], rows.inputs, columns.inputs
    outside = n["out_depth"], rows.reached, columns.reached
    return Needs(
        _blocks_reach(n["batch"], n["in_blocks"], inside, n["from"]),
        _blocks_reach(n["batch"], n["out_blocks"], outside, n["to"]),
    )


def _blocks_reach(batch: int, blocks: int, spatial: Sequence[int], steps: Sequence[int]) -> int:
    """The floats that pixels reach over whose channels fill blocks. ``steps`` are those of ``collage_steps``."""
    per_batch, per_block, *others = steps
    return reach((batch, per_batch), (blocks, per_block), *zip(spatial, others, strict=True), last=BLOCK)


@dataclass(frozen=True)
class _Axis:
    """The C structure ``collage_winograd_axis``."""

    inputs: int
    phases: int
    counts: Sequence[int]
    reached: int
    """How many places there are in the result from the first to the last one that is written."""

    @staticmethod
    def read(name: str, numbers: Sequence[int]) -> _Axis:
        inputs, _, phases = numbers[:3]
        begin, count = numbers[3:5], numbers[5:7]
        if inputs < 1 or phases not in (1, 2) or min(*begin, *count) < 0 or abs(max(numbers, key=abs)) >= 1 << 40:
            raise MalformedError(f"{name} are {list(numbers)}")
        there = range(phases)
        reached = max(begin[i] + (count[i] - 1) * phases + 1 for i in there)
        return _Axis(inputs, phases, [count[i] for i in there], max(1, reached))

    def tiles(self, tile: int) -> int:
        """The most tiles of a phase."""
        return max(-(-count // tile) for count in self.counts)


def shallow_limits(n: Numbers, arrays: Arrays) -> Needs:
    """The limits of the kernel in `shallow_conv.h`."""
    at_least(1, n, "batch", "channels", "out_blocks", "in", "out", "rows", "columns", "stride", "seen", "points")
    at_least(1, n, "row_chunk", "planes")
    at_least(0, n, "pad")
    _check_work(n, n["batch"], *n["out"], n["out_blocks"])
    many = n["planes"] > 4 or n["seen"] > 16 or n["stride"][2] > 2
    if many or (n["planes"] == 1 and n["seen"] != n["points"]):
        raise MalformedError(f"{n['planes']} planes from {n['seen']} by {n['points']} points")
    if n["row_chunk"] > n["out"][1]:
        raise MalformedError(f"{n['row_chunk']} rows of {n['out'][1]} at a time")
    taps = n["channels"] * n["rows"] * n["columns"]
    check_floats("weights", arrays["weights"], n["points"] * taps * n["out_blocks"] * BLOCK)
    check_floats("before", arrays["before"], n["points"] * n["seen"])
    check_floats("after", arrays["after"], 4 * n["points"])
    check_floats("bias", arrays["bias"], n["out_blocks"] * BLOCK)
    steps = [n[f"to_{name}"] for name in ("batch", "block", "plane", "row", "pixel")]
    result = _blocks_reach(n["batch"], n["out_blocks"], n["out"], steps)
    return Needs(n["batch"] * n["channels"] * math.prod(n["in"]), result)


def narrow_limits(n: Numbers, arrays: Arrays) -> Needs:
    """The limits of the kernel in `narrow_transposed.h`."""
    at_least(1, n, "batch", "inputs", "outputs", "in", "out", "row_chunk")
    if any(pad not in (0, 1) for pad in (*n["row_pad"], *n["column_pad"])):
        raise MalformedError(f"paddings of {n['row_pad']} and {n['column_pad']}")
    if n["inputs"] % BLOCK or n["outputs"] > 4 or n["row_chunk"] > max(2, -(-n["out"][0] // 2)):
        raise MalformedError(f"{n['inputs']} to {n['outputs']} channels, {n['row_chunk']} rows at a time")
    check_floats("weights", arrays["weights"], 16 * n["inputs"] * n["outputs"])
    check_floats("bias", arrays["bias"], n["outputs"])
    steps = [n[f"from_{name}"] for name in ("batch", "block", "row", "pixel")]
    data = _blocks_reach(n["batch"], n["inputs"] // BLOCK, n["in"], steps)
    return Needs(data, n["batch"] * n["outputs"] * math.prod(n["out"]))


def gemm_limits(n: Numbers, arrays: Arrays) -> Needs:
    """The limits of the kernel in `gemm.h`."""
    at_least(1, n, "rows", "depth", "columns", "row_chunk", "slice")
    blocks = -(-n["columns"] // BLOCK)
    check_floats("weights", arrays["weights"], n["depth"] * blocks * BLOCK)
    check_floats("bias", arrays["bias"], n["columns"])
    return Needs(n["rows"] * n["depth"], n["rows"] * n["columns"])


def experts_limits(n: Numbers, arrays: Arrays, together: int, *, scaled: bool) -> Needs:
    """The limits of the kernel in `expert_gemm.h`. Its choices are checked where it is bound to buffers.

    So many weights lie ``together`` in 4 bytes. If they are ``scaled``, each column has a factor.
    """
    at_least(1, n, "rows", "depth", "columns", "experts", "row_chunk", "slice")
    one_of((0, 1), n, "in_order")
    if n["row_chunk"] > _MOST_FLOATS:
        raise MalformedError(f"{n['row_chunk']} rows of {n['depth']} at a time")
    whole = -(-n["columns"] // BLOCK) * BLOCK
    check_floats("weights", arrays["weights"], n["experts"] * -(-n["depth"] // together) * whole)
    if scaled:
        check_floats("scales", arrays["scales"], n["experts"] * whole)
    return Needs(n["rows"] * n["depth"], n["rows"] * n["columns"])


def reduced_gemm_limits(n: Numbers, arrays: Arrays, names: Sequence[str], together: int, most_depth: int) -> Needs:
    """The limits of the kernels in `bf16_gemm.h`, `amx_gemm.h` and `int8_gemm.h`.

    So many weights lie ``together`` in 4 bytes. The other arrays of ``names`` have a number for each column. A number
    of bfloat16 counts as half a float.
    """
    at_least(1, n, "rows", "depth", "columns", "row_chunk")
    one_of((0, 1), n, "by_rows", "widens", "src_narrow", "dst_narrow")
    if max(n["rows"], n["columns"], n["row_chunk"]) > _MOST_FLOATS or n["depth"] > most_depth:
        raise MalformedError(f"a product of {n['rows']} x {n['depth']} x {n['columns']}")
    whole = -(-n["columns"] // BLOCK) * BLOCK
    for name in names:
        check_floats(name, arrays[name], -(-n["depth"] // together) * whole if name == "weights" else whole)
    data, result = n["rows"] * n["depth"], n["rows"] * n["columns"]
    return Needs(data / 2 if n["src_narrow"] else data, result / 2 if n["dst_narrow"] else result)
