"""The native attention over a paged cache, as steps of a launch list; see ``native/kernels/attention.cpp``."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from collage.core.typed import MalformedError
from collage.errors import CollageError
from collage.graph.dataflow import Array, np_dtype
from collage.kernel.buffers import ALIGNMENT, aligned_empty
from collage.native import Step, Task
from collage.native.kernel_library import NOT_BUILT, kernels_problem, library_function
from collage.native.reach import check_floats, reach
from collage.native.structure import structure
from collage.serve.runner import Slice

BLOCK_TOKENS = 32
"""Tokens of a block of the cache, as in attention.h."""
MOST_DIM = 256
"""The most elements of a head."""
CACHE_TYPES = ("float32", "bfloat16", "int8")
"""The types of a cache's elements, in the order of the C enum."""
_SCALED = "int8"
_LANES = 16


@dataclass(frozen=True)
class Heads:
    """The heads of a layer, and how they score keys; head h reads K/V head ``h // (heads / kv_heads)``.

    Heads of q and k have ``dim`` elements, and those of v and of the output ``value_dim``, as many if that is 0.
    ``rotary`` is the number of elements of a head that are rotated, 0 for none: as pairs of neighbours where
    ``interleaved``, else each with the one half of them away. Scores are multiplied with ``scale``. With a ``softcap``
    scores x become softcap * tanh(x / softcap) then. With ``slopes``, one for each head, they lose that for each token
    between q and k (ALiBi, Press et al. 2022). With a ``window``, a token sees so many, itself among them. With
    ``sinks``, one for each head, the softmax has that score beside those of the keys, and its weight is dropped.
    """

    heads: int
    kv_heads: int
    dim: int
    rotary: int
    interleaved: bool
    scale: float
    softcap: float = 0.0
    window: int = 0
    slopes: tuple[float, ...] = ()
    sinks: tuple[float, ...] = ()
    value_dim: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for heads that the kernel cannot compute, as a damaged file may have them."""
        object.__setattr__(self, "value_dim", self.value_dim or self.dim)
        if not 0 < self.kv_heads <= self.heads or self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} K/V heads")
        if not 0 < self.dim <= MOST_DIM or not 0 <= self.rotary <= self.dim or self.rotary % 2:
            raise ValueError(f"heads of {self.dim} elements, of which {self.rotary} are rotated, cannot be")
        if not 0 < self.value_dim <= MOST_DIM:
            raise ValueError(f"heads with values of {self.value_dim} elements cannot be")
        each = len(self.slopes), len(self.sinks)
        if self.window < 0 or not self.softcap >= 0 or not {*each} <= {0, self.heads}:
            raise ValueError(
                f"{self.heads} heads with a window of {self.window} tokens, a softcap of {self.softcap}, {each[0]} "
                f"slopes and {each[1]} sinks cannot be"
            )

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The heads, the K/V heads, ``dim`` and ``value_dim``, which are the same in all layers of a decoder."""
        return self.heads, self.kv_heads, self.dim, self.value_dim

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """The floats of a token in q, in k, in v and in the output."""
        return (
            self.heads * self.dim,
            self.kv_heads * self.dim,
            self.kv_heads * self.value_dim,
            self.heads * self.value_dim,
        )

    def block_bytes(self, dtype: str = "float32") -> int:
        tokens = self.kv_heads * BLOCK_TOKENS
        elements = tokens * (self.dim + _whole_vectors(self.value_dim))
        return elements * np_dtype(dtype).itemsize + (2 * 4 * tokens if dtype == _SCALED else 0)


@dataclass(frozen=True)
class Rows:
    """Rows of a matrix, one for each token: they begin ``offset`` floats after those of ``array``."""

    array: Array
    offset: int
    distance: int

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data) + 4 * self.offset


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer: keys [block, kv_head, dim, token] and values [block, kv_head, token, value_dim, padded].

    Both are float32, or bfloat16 or int8, to which k and v are rounded when they are written. In int8 they are
    multiples of ``scales`` [block, kv_head, 2, token], those of keys and those of values; other types have none.
    """

    keys: Array
    values: Array
    scales: Array

    def fill(self, block: int, keys: npt.NDArray[np.float32], values: npt.NDArray[np.float32]) -> None:
        """Write a whole block, in float32 and of the shapes of a block, as the kernel would."""
        if self.keys.dtype != _SCALED:
            self.keys[block], self.values[block] = keys, values
            return
        for number, (to, given, axis) in enumerate(((self.keys, keys, 1), (self.values, values, 2))):
            scale = np.abs(given).max(axis, keepdims=True) / np.float32(127)
            to[block] = np.rint(given / np.maximum(scale, np.float32(1e-30)))
            self.scales[block, :, number] = scale.squeeze(axis)


def make_cache(heads: Heads, blocks: int, dtype: str = "float32") -> LayerCache:
    """An empty cache of that many blocks, in one of ``CACHE_TYPES``. Raises MemoryError."""
    keys = aligned_empty((blocks, heads.kv_heads, heads.dim, BLOCK_TOKENS), dtype)
    values = aligned_empty((blocks, heads.kv_heads, BLOCK_TOKENS, _whole_vectors(heads.value_dim)), dtype)
    values.fill(0)  # what pads a head is multiplied, too
    scales = (blocks, heads.kv_heads, 2, BLOCK_TOKENS) if dtype == _SCALED else (0,)
    return LayerCache(keys, values, aligned_empty(scales, "float32"))


class AttentionBatch:
    """The slices of an iteration, in the form that the kernels read. All layers share it."""

    def __init__(self, heads: Heads, threads: int) -> None:
        """``threads`` is the number of threads that the work is divided for."""
        self._struct = _Batch()
        self._shape = structure(_Shape, _numbers(heads, (0, 0, 0, 0), threads))
        self._heads = heads
        self._plan = _PROTOTYPE(_function("collage_attention_plan"))
        self._arrays: dict[str, Array] = {}

    @property
    def address(self) -> int:
        return ctypes.addressof(self._struct)

    def fill(self, slices: Sequence[Slice]) -> None:
        """Describe the slices, whose tokens are rows one after another, and divide the work into items."""
        lengths = [len(each.token_ids) for each in slices]
        tables = [len(each.blocks) for each in slices]
        blocks = [block for each in slices for block in each.blocks]
        self.describe(
            {
                "first": np.cumsum([0, *lengths], dtype=np.int64),
                "start": np.array([each.start for each in slices], np.int64),
                "table": np.cumsum([0, *tables], dtype=np.int64),
                "tables": np.array(blocks, np.int32),
            }
        )

    def describe(self, arrays: Mapping[str, Array]) -> None:
        """Take the arrays of the C struct, and divide the work into items.

        A process that holds some blocks of the sequences only gives ``places`` and ``stored``, too.
        """
        for name, array in arrays.items():
            self._set(name, array)
        self._struct.requests = len(arrays["start"])
        if self._plan(ctypes.addressof(self._shape), self.address):
            self._grow()  # for twice as much as is needed
            status = self._plan(ctypes.addressof(self._shape), self.address)
            assert not status, "the attention cannot be planned"

    def _grow(self) -> None:
        found = self._struct
        for name, kind, size in (("item", "items", 9), ("merge", "merges", 2)):
            needed = 2 * getattr(found, f"{name}_count") * size
            self._set(kind, np.empty(needed, np.int64))
            setattr(found, f"{name}_capacity", needed // size)
        self._set("partials", aligned_empty((2 * found.partial_count,), "float32"))
        found.partial_capacity = 2 * found.partial_count

    def _set(self, name: str, array: Array) -> None:
        self._arrays[name] = array  # kept, since the struct has only its address
        setattr(self._struct, name, array.ctypes.data)


@dataclass(frozen=True)
class Operands:
    """What one layer's attention reads and writes: rows of q, k, v and of the output, and its cache."""

    q: Rows
    k: Rows
    v: Rows
    out: Rows
    cache: LayerCache


@dataclass(frozen=True)
class Rotations:
    """cos and sin of the angles of each position [position, rotary / 2]; empty without rotary positions."""

    cos: npt.NDArray[np.float32]
    sin: npt.NDArray[np.float32]


@dataclass(frozen=True)
class LayerAttention:
    """How a layer attends: its heads, and the angles that it rotates q and k by. Layers may share the tables."""

    heads: Heads
    rotations: Rotations


def attention_steps(
    heads: Heads,
    batch: AttentionBatch,
    operands: Operands,
    rotations: Rotations,
    threads: int,
    partial: bool = False,
) -> list[Step]:
    """The steps of a layer: k and v are written to the cache, parts of sequences are attended to, and merged.

    With ``partial`` the output has (m, s, o) of each head [heads, 2 + value_dim], to be merged with those of other
    processes. Raises CollageError without the native kernels, and for rows that are too short, as a damaged file may
    name them.
    """
    rows = (operands.q, operands.k, operands.v, operands.out)
    *widths, out_width = heads.widths
    widths.append(out_width + 2 * heads.heads * partial)
    for name, each, width in zip("q k v output".split(), rows, widths, strict=True):
        _check_rows(name, each, width)
    cells = CACHE_TYPES.index(operands.cache.keys.dtype.name)
    numbers = _numbers(heads, [each.distance for each in rows], threads, cells)
    shape = structure(_Shape, {**numbers, "partial": int(partial)})
    q, k, v, out = (each.address for each in rows)
    cache = operands.cache
    middle = (cache.keys, cache.values, rotations.cos, rotations.sin)
    by_head = [np.array(each, np.float32) for each in (heads.slopes, heads.sinks)]
    ends = (*map(_address, by_head), int(cache.scales.ctypes.data), batch.address)
    places = (q, k, v, *(int(each.ctypes.data) for each in middle), out, *ends)
    buffers = (ctypes.c_void_p * len(places))(*places)
    keep = (shape, buffers, batch, operands, rotations, by_head)
    tasks = [
        [
            Task(
                _function(f"collage_attention_{name}"),
                ctypes.addressof(shape),
                ctypes.addressof(buffers),
                n,
                0,
                keep,
            )
            for n in range(threads)
        ]
        for name in ("store", "attend", "finish")
    ]
    return [Step(tuple(each)) for each in tasks]


def _check_rows(name: str, rows: Rows, width: int) -> None:
    """Raise CollageError unless so many floats of each row are in the array."""
    array = rows.array
    count = array.size // rows.distance if rows.distance > 0 else 0
    try:
        if array.dtype != np.float32:
            raise MalformedError(f"{name} is {array.dtype}, and not float32")
        check_floats(name, array, reach((count, rows.distance), last=width, start=rows.offset))
    except MalformedError as error:
        raise CollageError(f"the decoder's attention is damaged: {error}; compile it again.") from error


class Merge:
    """Merges the partial results of several processes [count, row, heads, 2 + value_dim] to rows of the output."""

    def __init__(self, heads: Heads, partials: Array, out: Rows, threads: int) -> None:
        self._partials = partials
        sinks = np.array(heads.sinks, np.float32)
        self._struct = _Partials(count=len(partials), apart=partials[0].size, out=out.address, sinks=_address(sinks))
        self._shape = structure(_Shape, _numbers(heads, (0, 0, 0, out.distance), threads))
        keep = (self._struct, self._shape, partials, out, sinks)
        function = _function("collage_attention_combine")
        places = ctypes.addressof(self._shape), ctypes.addressof(self._struct)
        self.steps = [Step(tuple(Task(function, *places, n, 0, keep) for n in range(threads)))]

    def set_rows(self, first: int, count: int) -> None:
        """Merge ``count`` rows of the partial results from ``first`` on, to as many rows of the output."""
        row = self._partials[0, 0].nbytes
        self._struct.partials = int(self._partials.ctypes.data) + first * row
        self._struct.rows = count


def attention_problem() -> str:
    """The reason why the native attention cannot be used, or "" if it can."""
    if _sizes() == tuple(map(ctypes.sizeof, (_Shape, _Batch, _Partials))):
        return kernels_problem() if platform.machine() in ("x86_64", "AMD64") else ""
    return NOT_BUILT


@cache
def _sizes() -> tuple[int, ...]:
    """The bytes of the structs that the library was built with; none where it has no attention, or an older one."""
    found = library_function("collage_attention_sizes")
    if found is None:
        return ()
    sizes = (ctypes.c_int64 * 3)()
    _PROTOTYPE(found)(ctypes.addressof(sizes), None)
    return tuple(sizes)


def _function(name: str) -> int:
    found = library_function(name)
    if found is None:
        raise CollageError(attention_problem())
    return found


def _whole_vectors(elements: int) -> int:
    return -(-elements // _LANES) * _LANES


def _address(array: Array) -> int | None:
    return int(array.ctypes.data) if array.size else None


def _numbers(heads: Heads, rows: Sequence[int], threads: int, cells: int = 0) -> dict[str, float]:
    names = ("q_row", "k_row", "v_row", "out_row")
    return {
        **{
            name: int(value)
            for name, value in vars(heads).items()
            if name not in ("scale", "softcap", "slopes", "sinks")
        },
        **dict(zip(names, rows, strict=True)),
        "threads": threads,
        "cells": cells,
        "scale": heads.scale,
        "softcap": heads.softcap,
        "partial": 0,
    }


_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in "heads kv_heads dim value_dim rotary interleaved".split()),
        *((name, ctypes.c_int64) for name in "q_row k_row v_row out_row threads cells".split()),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window", ctypes.c_int64),
        ("partial", ctypes.c_int64),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        ("requests", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in "first start table tables items merges partials".split()),
        *((f"{name}_capacity", ctypes.c_int64) for name in ("item", "merge", "partial")),
        *((f"{name}_count", ctypes.c_int64) for name in ("item", "merge", "partial")),
        ("next", ctypes.c_int64),
        ("places", ctypes.c_void_p),
        ("stored", ctypes.c_void_p),
    )


class _Partials(ctypes.Structure):
    _fields_ = (
        ("partials", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in "rows count apart".split()),
    )


assert ALIGNMENT % (4 * _LANES) == 0  # a row of values begins at a vector's boundary
