"""The products of an artifact, and how far each goes in its buffers: checked before MKL gets them."""

from __future__ import annotations

from dataclasses import dataclass

from collage.core.typed import MalformedError, typed
from collage.graph.dataflow import Array
from collage.native.packed import Packed
from collage.native.reach import check_floats, reach

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
            raise MalformedError(
                f"{len(self.left)} matrices times {len(self.right)} others make {len(self.dst)}"
            )

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
    if (weights is None) == (numbers["right"] is None) or (
        is_packed and (weights is None or weights.ndim != 2)
    ):
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
