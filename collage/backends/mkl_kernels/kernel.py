"""Binding a product to buffers: calls of MKL, each with its epilogue's pass over the sums, as a share's one task."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collage.backends.chains.strided import FLOAT_BYTES
from collage.backends.mkl_kernels.library import library
from collage.backends.native_kernels.geometry import shape_struct
from collage.core.typed import MalformedError, typed
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN_BF16, to_layout
from collage.kernel.buffers import aligned_bytes
from collage.native import NativeKernel, Step, Task, in_sequence
from collage.native.kernel_library import kernel_function
from collage.native.library import address_of, core
from collage.native.packed import Packed
from collage.native.reach import check_floats, picked, reach
from collage.native.structure import structure

_MOST = 2**31 - 1


@dataclass(frozen=True)
class MklProduct:
    """One call: the numbers of ``collage_product`` (blas.h), and where each matrix of a batch starts, in floats."""

    rows: int
    columns: int
    depth: int
    first_column: int
    left_row: int
    left_transposed: bool
    left: tuple[int, ...]
    right_row: int
    right_transposed: bool
    right: tuple[int, ...]
    dst_row: int
    dst: tuple[int, ...]

    def check_numbers(self) -> None:
        """Raises MalformedError unless rows do not overlap, and the matrices' shapes fit each other."""
        sides = self.rows, self.columns, self.depth
        apart = (
            self.left_row >= (self.rows if self.left_transposed else self.depth)
            and self.right_row >= (self.depth if self.right_transposed else self.columns)
            and self.dst_row >= self.columns
        )
        numbers = *sides, self.left_row, self.right_row, self.dst_row
        if min(sides) < 1 or max(numbers) > _MOST or not apart or self.first_column < 0:
            raise MalformedError(f"a product of {self.rows}x{self.depth} with {self.depth}x{self.columns}")
        if not 0 < len(self.dst) == len(self.left) == len(self.right):
            raise MalformedError(f"{len(self.left)} matrices times {len(self.right)} others make {len(self.dst)}")

    def check(
        self,
        left: Array | None,
        right: Array | None,
        residual: Array | None,
        dst: Array | None,
        *,
        narrow: bool = False,
    ) -> None:
        """Raises MalformedError unless the buffers that there are are large enough.

        A ``narrow`` left operand is bfloat16, of which an element is as long as half a float.
        """
        left_walks = (self.depth, self.rows) if self.left_transposed else (self.rows, self.depth)
        right_walks = (self.columns, self.depth) if self.right_transposed else (self.depth, self.columns)
        for what, array, starts, (count, length), row in (
            ("the left operand", left, self.left, left_walks, self.left_row),
            ("the right operand", right, self.right, right_walks, self.right_row),
            ("the residual", residual, self.dst, (self.rows, self.columns), self.dst_row),
            ("the result", dst, self.dst, (self.rows, self.columns), self.dst_row),
        ):
            if array is not None:
                reach(last=length, start=min(starts))
                needed = reach((count, row), last=length, start=max(starts))
                check_floats(what, array, needed / 2 if narrow and array is left else needed)


def read_shares(packed: Packed, threads: int) -> list[list[MklProduct]]:
    """The products of each share. Raises MalformedError if they, and the arrays, do not fit each other."""
    numbers = packed.numbers
    shares = typed(list[list[MklProduct]], numbers["shares"])
    if not 1 <= len(shares) <= threads or not all(shares):
        raise MalformedError(f"{len(shares)} shares on {threads} threads")
    typed(list[int], [numbers["left"], *(numbers[name] or 0 for name in ("right", "residual"))])
    weights, bias = packed.arrays.get("weights"), packed.arrays.get("bias")
    factor, is_packed, follows = (
        numbers["factor"],
        typed(bool, numbers["packed"]),
        typed(bool, numbers["finish"]),
    )
    typed(float, factor)
    if (weights is None) == (numbers["right"] is None) or (is_packed and (weights is None or weights.ndim != 2)):
        raise MalformedError("a right operand that is missing, or there twice")
    for calls in shares:
        for call in calls:
            call.check_numbers()
            _check_arrays(call, weights, bias if follows else None, is_packed)
            first = calls[0]
            same = (call.columns, call.depth, call.first_column) == (
                first.columns,
                first.depth,
                first.first_column,
            )
            if is_packed and (not same or len(call.dst) != 1):
                raise MalformedError("products of one packed matrix that differ")
    return shares


def _check_arrays(call: MklProduct, weights: Array | None, bias: Array | None, is_packed: bool) -> None:
    if bias is not None:
        check_floats("bias", bias, call.first_column + call.columns)
    if weights is None:
        return
    if is_packed:
        depth, columns = weights.shape
        if call.depth > depth or call.first_column + call.columns > columns:
            raise MalformedError(f"{call.depth}x{call.columns} of weights of {depth}x{columns}")
        return
    call.check(None, weights, None, None)


_ROW_MAJOR, _AS_IS, _RIGHT = 101, 111, 162  # CblasRowMajor, CblasNoTrans, CblasBMatrix
_PLAIN, _PACKED, _BATCH = range(3)  # the kinds of calls in blas.h
_BF16_BYTES = 2


class MklKernel(NativeKernel):
    """A kernel whose shares multiply parts of the matrices. MKL packs a constant operand when the kernel is loaded."""

    def __init__(self, packed: Packed, threads: int) -> None:
        """Raises ValueError if numbers and arrays do not fit each other."""
        super().__init__(threads)
        self._numbers = packed.numbers
        self._narrow = typed(bool, packed.numbers.get("narrow", False))
        self._shares = read_shares(packed, threads)
        self._weights, self._bias = packed.arrays.get("weights"), packed.arrays.get("bias")
        self._epilogue = kernel_function("collage_finish") if packed.numbers["finish"] else 0
        if self._narrow and not (self._numbers["packed"] and library().has_bf16):
            raise MalformedError("a product in bfloat16 that this MKL does not have")
        self._packed: list[npt.NDArray[np.uint8]] = []
        if self._numbers["packed"]:
            self._packed = [self._pack(calls[0]) for calls in self._shares]
            self._weights = None

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """One step with a task for each share. Raises ValueError if buffers are too small."""
        left, right, residual = (
            None if self._numbers[name] is None else picked("input", inputs, self._numbers[name])
            for name in ("left", "right", "residual")
        )
        dst = picked("output", outputs, 0)
        for call in (call for calls in self._shares for call in calls):
            call.check(left, right, residual, dst, narrow=self._narrow)
        shares = range(len(self._shares))
        return [Step(tuple(in_sequence(tuple(self._share(i, inputs, dst))) for i in shares))]

    def _share(self, share: int, inputs: Sequence[Array], dst: Array) -> Iterator[Task]:
        for call in self._shares[share]:
            yield self._multiply(share, call, inputs, dst)
            if self._epilogue:
                for start in call.dst:
                    yield self._epilogue_of(call, start, inputs, dst)

    def _multiply(self, share: int, call: MklProduct, inputs: Sequence[Array], dst: Array) -> Task:
        numbers, count = self._numbers, len(call.dst)
        left = inputs[numbers["left"]]
        right: Array
        starts: Sequence[int] = call.right
        if self._packed:
            right, starts = self._packed[share], [0]
        elif self._weights is not None:
            right = self._weights
        else:
            right = inputs[numbers["right"]]
        kind = _PACKED if self._packed else _BATCH if count > 1 else _PLAIN
        more = {"kind": kind, "count": count, "factor": numbers["factor"]}
        shape = structure(_Product, {**vars(call), **more})
        item = _BF16_BYTES if self._narrow else FLOAT_BYTES
        pointers = (_pointers(left, call.left, item), _pointers(right, starts), _pointers(dst, call.dst))
        matrices = (ctypes.c_void_p * 3)(*map(ctypes.addressof, pointers))
        blas = library().blas
        return Task(
            address_of(core().collage_multiply_bf16 if self._narrow else core().collage_multiply),
            a=ctypes.addressof(blas),
            b=ctypes.addressof(shape),
            c=ctypes.addressof(matrices),
            keep=(blas, shape, matrices, pointers, left, right, dst),
        )

    def _epilogue_of(self, call: MklProduct, start: int, inputs: Sequence[Array], dst: Array) -> Task:
        numbers = self._numbers
        shape = structure(_Epilogue, {**numbers, **vars(call), "row": call.dst_row})
        residual = None if numbers["residual"] is None else inputs[numbers["residual"]]
        places = ((self._bias, call.first_column), (residual, start), (dst, start))
        buffers = (ctypes.c_void_p * len(places))(*(_address(array, at) for array, at in places))
        keep = (shape, buffers, self._bias, residual, dst)
        return Task(self._epilogue, ctypes.addressof(shape), ctypes.addressof(buffers), keep=keep)

    def _pack(self, call: MklProduct) -> npt.NDArray[np.uint8]:
        """The share's columns of the weights, as MKL wants them on this processor."""
        assert self._weights is not None
        c = library().c
        sizes = call.rows, call.columns, call.depth
        if self._narrow:
            columns = self._weights[:, call.first_column : call.first_column + call.columns]
            rounded = to_layout(np.ascontiguousarray(columns), PLAIN_BF16)
            result = aligned_bytes(c.cblas_gemm_bf16bf16f32_pack_get_size(_RIGHT, *sizes))
            at = rounded.ctypes.data, call.columns, result.ctypes.data
            c.cblas_gemm_bf16bf16f32_pack(_ROW_MAJOR, _RIGHT, _AS_IS, *sizes, *at)
            return result
        result = aligned_bytes(c.cblas_sgemm_pack_get_size(_RIGHT, *sizes))
        source = _address(self._weights, call.first_column)
        columns = self._weights.shape[1]
        factor = self._numbers["factor"]
        c.cblas_sgemm_pack(_ROW_MAJOR, _RIGHT, _AS_IS, *sizes, factor, source, columns, result.ctypes.data)
        return result


def _address(array: Array | None, floats: int) -> int | None:
    return None if array is None else int(array.ctypes.data) + FLOAT_BYTES * floats


def _pointers(array: Array, starts: Sequence[int], item: int = FLOAT_BYTES) -> ctypes.Array[ctypes.c_void_p]:
    first = int(array.ctypes.data)
    return (ctypes.c_void_p * len(starts))(*(first + item * start for start in starts))


class _Product(ctypes.Structure):
    """``collage_product``, without where its matrices start."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in (
                "kind rows columns depth left_row right_row dst_row left_transposed right_transposed count".split()
            )
        ),
        ("factor", ctypes.c_float),
    )


_Epilogue = shape_struct("rows", "columns", "row", "activation", "residual_first")
"""``collage_finish_shape``."""
