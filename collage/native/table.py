"""Programs of operators that map rows to rows, as C structs; see `kernels/table.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from collage.errors import CollageError
from collage.kernel.buffers import ALIGNMENT, aligned_bytes
from collage.native.kernel_library import kernel_libraries, kernels_problem
from collage.native.launch import Task
from collage.native.library import address_of

if TYPE_CHECKING:
    from collage.native._call import Call

BLOCK = 256
"""The rows of a block."""
LANES = 64
"""The trees that one row is at side by side."""
MOST_COLUMNS = 1 << 18
"""The most columns that a step makes."""
_TURN = 16
"""Threads share rows by multiples of it, which bins are made of at a time."""
BLOCKS, SINGLE = 1, 2
"""What a step is for, if not for all rows."""
CHUNK = 16
"""The thresholds that one row's number is compared with at a time."""

Numbers: TypeAlias = "npt.NDArray[Any]"

_TYPES = ("float32", "float64", "int64", "int32", "uint8")
_OPS = (
    "load store convert bins trees member unary binary constant map normalize linear vectors reduce softmax largest "
    "select gather soft"
).split()
_UNARY = ("logistic probit negative absolute exp log sqrt tanh floor ceil is_nan not nan_high").split()
_BINARY = (
    "add subtract multiply divide minimum maximum equal greater greater_equal less less_equal and or power impute "
    "divided_by to_the_power constant_of"
).split()
_KINDS = {
    "unary": _UNARY,
    "binary": _BINARY,
    "constant": _BINARY,
    "normalize": ["maximum", "sum", "norm"],
    "vectors": ["dot", "polynomial", "radial", "sigmoid"],
    "reduce": ["sum", "mean", "least", "most", "product"],
    "softmax": ["all", "not zeros"],
    "largest": [""],
    "select": [""],
    "gather": [""],
    "soft": [""],
}
"""What ``kind`` can be of a step, if it is no type."""

_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _I32) for name in ("op", "ins", "outs", "only")),
        ("kinds", _I32 * 2),
        ("in_", _P),
        ("out", _P),
        ("data", _P * 2),
        ("sizes", _I64 * 3),
    )


class _Bins(ctypes.Structure):
    _fields_ = tuple((name, _P) for name in ("sorted", "last", "search", "levels", "high", "begin"))


_TREE_COUNTS = ("trees", "bins", "bin_columns", "runs", "single_runs", "groups", "lane_steps", "input", "width")
_TREE_ARRAYS = (
    "run single_run group tree node walk leaf value plane target lanes ordered lane_of direct first_leaf"
).split()


class _Trees(ctypes.Structure):
    _fields_ = (*((name, _I64) for name in _TREE_COUNTS), *((name, _P) for name in _TREE_ARRAYS))


class _SoftTrees(ctypes.Structure):
    _fields_ = (
        *((name, _I64) for name in ("trees", "nodes", "leaves", "targets", "numbers", "tables")),
        *((name, _P) for name in ("table", "categories", "weight", "bias", "path", "bend", "value", "shift")),
    )


class _Program(ctypes.Structure):
    _fields_ = (("count", _I64), ("steps", _P), *((n, _I64) for n in ("row_bytes", "scratch_bytes", "singly")))


class _Call(ctypes.Structure):
    _fields_ = (("inputs", _P), ("outputs", _P), *((name, _I64) for name in ("rows", "shares", "turn", "next", "done")))


NODE = np.dtype([("column", "u4"), ("bin", "i1"), ("first", "u1"), ("right", "u1"), ("unused", "u1")])
"""A node of a dense tree."""
NARROW_WALK = np.dtype([("threshold", "f4"), ("unused", "u4"), ("column", "u4"), ("left", "u4")])
WIDE_WALK = np.dtype([("threshold", "f8"), ("column", "u4"), ("left", "u4")])
"""A node of a walked tree, with a threshold of float32 or float64."""
TREE = np.dtype(
    [(n, "i8") for n in ("node", "nodes", "root", "depth", "leaf", "leaves", "planes", "width", "target", "targets")]
)
DENSE, SYMMETRIC, WALKED = range(3)
"""How trees are evaluated."""


@cache
def _library() -> ctypes.CDLL:
    """The best kernels for tables that this processor can run."""
    if problem := kernels_problem():
        raise CollageError(problem)
    for library in kernel_libraries():
        if library.collage_table_rows():
            return library
    raise CollageError("this processor has no AVX2, which Collage's kernels for tables need")


def register_rows() -> int:
    """The rows of a register of the kernels that run here. Raises CollageError if none do."""
    return int(_library().collage_table_rows())


def table_problem() -> str:
    """The reason why the kernels for tables cannot be used here, or ""."""
    try:
        import collage.native._call  # noqa: F401

        _library()
    except (CollageError, AttributeError, ImportError) as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Column:
    """A column of a block: its offset in the bytes of a row, and its type."""

    offset: int
    dtype: str


_READS = dict.fromkeys(("unary", "convert", "member", "map", "constant", "gather"), 1)
_READS |= {"load": 0, "binary": 2, "select": 3}
"""Operators that make each column by itself, and how many columns they read for it."""


@dataclass
class _Plan:
    """A step before it is a struct: offsets of columns, and what `TableProgram.step` takes."""

    op: str
    ins: list[int]
    outs: list[int]
    kinds: tuple[str, str]
    data: list[Any]
    sizes: list[int]
    only: int

    def keep(self, which: list[int]) -> None:
        """Make these of the columns only; the operator makes each by itself."""
        count = len(self.outs)
        self.ins = [self.ins[part * count + i] for part in range(max(1, _READS[self.op])) for i in which]
        self.outs = [self.outs[i] for i in which]
        if self.op in ("constant", "gather"):
            self.data = [self.data[0][which]]

    def fill(self, step: _Step) -> object:
        """Write the struct. Returns what has to live as long as it does."""
        offsets = [np.array(each, np.int32) for each in (self.ins, self.outs)]
        data = [_aligned(each) if isinstance(each, np.ndarray) else each for each in self.data]
        step.op, step.ins, step.outs, step.only = _OPS.index(self.op), len(self.ins), len(self.outs), self.only
        step.kinds[0] = _TYPES.index(self.kinds[0])
        step.kinds[1] = _KINDS[self.op].index(self.kinds[1]) if self.op in _KINDS else _TYPES.index(self.kinds[1])
        step.in_, step.out = (each.ctypes.data for each in offsets)
        for i, each in enumerate(data):
            step.data[i] = each.ctypes.data if isinstance(each, np.ndarray) else ctypes.addressof(each)
        for i, size in enumerate(self.sizes):
            step.sizes[i] = size
        return offsets, data


def _needed(plans: Sequence[_Plan]) -> list[_Plan]:
    """The steps, without the columns that nobody reads."""
    needed: set[int] = set()
    found = []
    for plan in reversed(plans):
        if plan.op in _READS:
            which = [i for i, out in enumerate(plan.outs) if out in needed]
            if not which:
                continue
            plan.keep(which)
            if not plan.only:
                needed.difference_update(plan.outs)
        if plan.op != "load":  # it reads columns of an input
            needed.update(plan.ins)
        found.append(plan)
    return found[::-1]


@dataclass
class TableProgram:
    """A program that is built step by step.

    Its inputs and outputs are arrays of rows. All arrays that steps read live as long as it does.
    """

    row_bytes: int = 0
    scratch_bytes: int = 4096
    singly: int = 1
    only: int = 0
    """What the next steps are for: 0 for all, BLOCKS, or SINGLE for rows that run one by one."""
    _plans: list[_Plan] = field(default_factory=list)

    def new(self, dtype: str, count: int = 1) -> list[Column]:
        """New columns, behind each other. Raises ValueError for more than a block can have."""
        if count > MOST_COLUMNS:
            raise ValueError(f"{count} columns")
        size = np.dtype(dtype).itemsize
        begin = -(-self.row_bytes // size) * size
        self.row_bytes = begin + size * count
        return [Column(begin + size * i, dtype) for i in range(count)]

    def new_bytes(self, count: int) -> int:
        """The offset of new columns of bytes, 64 of which may be read beyond the last one."""
        begin = -(-self.row_bytes // 64) * 64
        self.row_bytes = begin + count + LANES
        return begin

    def step(
        self,
        op: str,
        ins: Sequence[Column] | Sequence[int],
        outs: Sequence[Column] | Sequence[int],
        kinds: tuple[str, str],
        data: Sequence[Any] = (),
        sizes: Sequence[int] = (),
    ) -> None:
        """Add a step; ``kinds`` are a type, and a type or what the step does. ``data`` are arrays or structs."""
        read, made = ([c.offset if isinstance(c, Column) else c for c in each] for each in (ins, outs))
        self._plans.append(_Plan(op, read, made, kinds, [*data], [*sizes], self.only))

    def bound(self) -> Program:
        """The program, ready to run."""
        plans = _needed(self._plans)
        steps = (_Step * len(plans))()
        keep = [plan.fill(step) for step, plan in zip(steps, plans, strict=True)]
        program = _Program(
            len(steps), ctypes.addressof(steps), -(-self.row_bytes // 64) * 64, self.scratch_bytes, self.singly
        )
        return Program(program, (steps, keep))


def bins_struct(**arrays: Numbers) -> Any:
    """The struct of thresholds, with arrays by field name."""
    return _filled(_Bins(), {}, arrays)


def trees_struct(counts: dict[str, int], arrays: dict[str, Numbers | None]) -> Any:
    """The struct of an ensemble, with numbers and arrays by field name."""
    return _filled(_Trees(), counts, arrays)


def soft_trees_struct(counts: dict[str, int], tables: Sequence[Numbers], arrays: dict[str, Numbers]) -> Any:
    """The struct of soft trees, with numbers and arrays by field name."""
    kept = [_aligned(each) for each in tables]
    pointers = np.array([each.ctypes.data for each in kept], np.uint64)
    found = _filled(_SoftTrees(), counts, {**arrays, "table": pointers})
    found.keep |= {"tables": kept}
    return found


def soft_trees_work(struct: Any) -> int:
    """The bytes that soft trees work in for a block of rows."""
    count = _library().collage_soft_trees_work
    count.restype, count.argtypes = _I64, (_P, _I64)
    return 4 * int(count(ctypes.addressof(struct), BLOCK))


def _filled(found: Any, counts: dict[str, int], arrays: dict[str, Any]) -> Any:
    for name, count in counts.items():
        setattr(found, name, count)
    found.keep = kept = {name: _aligned(array) for name, array in arrays.items() if array is not None}
    for name, array in kept.items():
        setattr(found, name, array.ctypes.data)
    return found


def _aligned(array: Numbers) -> Numbers:
    """The array, contiguous and at the beginning of a line of the cache: loads of whole registers are not cut."""
    if array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    found = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


class Program:
    """A program for any number of rows."""

    def __init__(self, program: _Program, keep: object) -> None:
        self._program = program
        self._keep = keep
        self.address = ctypes.addressof(program)
        from collage.native._call import run_table

        self._run, self._alone = run_table, address_of(_library().collage_table_alone)

    def run(self, inputs: list[Any], outputs: list[Any], rows: int, *, hold: bool) -> None:
        """Run it on contiguous arrays in the calling thread. With ``hold`` it keeps the GIL."""
        if status := self._run(self._alone, self.address, inputs, outputs, rows, hold):
            _failed(status)

    @property
    def singly(self) -> int:
        """The most rows that run one by one."""
        return int(self._program.singly)

    @singly.setter
    def singly(self, rows: int) -> None:
        self._program.singly = rows


class TableCall:
    """A call of a program on arrays, which have to be contiguous, and of the program's types."""

    def __init__(
        self, program: Program, inputs: Sequence[Numbers], outputs: Sequence[Numbers], rows: int, shares: int = 1
    ) -> None:
        pointers = [(_P * len(each))(*(array.ctypes.data for array in each)) for each in (inputs, outputs)]
        turns = shares * -(-rows // (shares * BLOCK)) if shares > 1 else 1
        turn = min(BLOCK, -(-rows // (turns * _TURN)) * _TURN)
        self._call = _Call(*(ctypes.addressof(each) for each in pointers), rows, shares, turn, 0, 0)
        self._program = program
        self._keep = (program, inputs, outputs, pointers, self._call)

    def alone(self, *, hold: bool) -> Call:
        """All rows in the calling thread. With ``hold`` it keeps the GIL."""
        from collage.native._call import Call

        function, arguments = address_of(_library().collage_table_alone), (self._program.address, self._address, 0, 0)
        return Call(function, *arguments, hold, True, _failed, self._keep)

    def share(self) -> Task:
        """The task of each of the threads that share the rows."""
        return Task(address_of(_library().collage_table), self._program.address, self._address, 0, 0, self._keep)

    @property
    def _address(self) -> int:
        return ctypes.addressof(self._call)


def _failed(status: int) -> None:
    raise MemoryError("there is no memory for the columns of a block of rows")
