"""Scans, which look whether all elements of a value are ordinary numbers.

Ordinary floats are finite and no larger than LIMIT in magnitude, or than a limit of the value's own, and ordinary
integers are no larger than INTEGER_LIMIT.
Kernels that are right on finite numbers only get no other numbers: their inputs are scanned, and if a scan finds
something else it sets a flag, which the executor reads afterwards. See `kernels/scan.cpp`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.graph.dataflow import Array
from collage.graph.magnitudes import (
    INTEGER_LIMIT,
    LIMIT,
    SCANNED,
    SCANNED_INTEGERS,
    can_be_limited,
    is_scanned,
    limit_bits,
)
from collage.kernel.kernel import Call
from collage.native.kernel_library import library_function
from collage.native.launch import Step, Task, in_sequence

Flag = npt.NDArray[np.int64]
"""An array of one element, which a scan sets to 1 if it finds something."""

_CODES = {name: code for code, name in enumerate((*SCANNED, *SCANNED_INTEGERS))}
"""The enumeration in scan.h."""
_SMALL_BYTES = 1 << 15
"""A size up to which one thread has finished the scan before other threads have begun."""


@dataclass(frozen=True)
class Scanned:
    """An array, and the largest magnitude that is ordinary in it; float64 and integers have the general limits."""

    array: Array
    limit: float = LIMIT

    @property
    def floats(self) -> Scanned:
        """The elements as one axis; complex numbers become two floats each."""
        flat = self.array.reshape(-1)
        whole = flat.view(f"float{flat.dtype.itemsize * 4}") if flat.dtype.kind == "c" else flat
        return Scanned(whole, self.limit)

    @property
    def code(self) -> int:
        """The kind of the elements, and their limit if it is their own, as scan.h has them."""
        name = self.array.dtype.name
        own = self.limit < LIMIT and can_be_limited(name)
        return _CODES[name] | (limit_bits(name, self.limit) << 8 if own else 0)


@dataclass(frozen=True)
class Assumed:
    """An array, and the bytes that it has to hold."""

    array: Array
    content: bytes


def new_flag() -> Flag:
    """A flag that is not set."""
    return np.zeros(1, np.int64)


def scan_step(scans: Sequence[Scanned], flag: Flag, threads: int) -> Step | None:
    """A step for ``threads`` threads that makes the scans, or None without the native kernels."""
    function = scan_function()
    if function is None:
        return None
    tasks = []
    for each in scans:
        whole = each.floats
        shares = threads if whole.array.nbytes > _SMALL_BYTES else 1
        for share in np.array_split(whole.array, shares):
            tasks.append(_task(function, Scanned(share, each.limit), flag))
    return Step(tuple(tasks))


def scan_call(scans: Sequence[Scanned], flag: Flag) -> Call:
    """A call that makes the scans in the calling thread."""
    function = scan_function()
    if function is None:
        return _numpy_call(scans, flag)
    return _NativeCall(function, [_task(function, each.floats, flag) for each in scans])


def assumed_step(assumed: Sequence[Assumed], flag: Flag) -> Step | None:
    """A step that compares arrays with what they have to hold, or None without the native kernels."""
    function = library_function("collage_scan_equal")
    if function is None:
        return None
    tasks = []
    for each in assumed:
        content = np.frombuffer(each.content, np.uint8)
        addresses = (int(array.ctypes.data) for array in (each.array, flag, content))
        a, b, c = addresses
        tasks.append(Task(function, a=a, b=b, n=content.size, c=c, keep=(each.array, flag, content)))
    return Step((in_sequence(tasks),))


def assumed_call(assumed: Sequence[Assumed], flag: Flag) -> Call:
    """A call that compares arrays with what they have to hold."""

    def run() -> None:
        if any(each.array.tobytes() != each.content for each in assumed):
            flag[0] = 1

    return run


def are_all_ordinary(arrays: Sequence[Array]) -> bool:
    """Whether a scan of these arrays finds nothing, by the general limits. Arrays of other types count as ordinary.

    It is made at once in this thread, in some microseconds for small arrays.
    """
    function = _callable_scan()
    if function is None:
        flag = new_flag()
        _numpy_call([Scanned(np.ascontiguousarray(each)) for each in arrays if is_scanned(each.dtype.name)], flag)()
        return not flag[0]
    found = ctypes.c_int64(0)
    address = ctypes.byref(found)
    for each in arrays:
        code = _code_of(each.dtype)
        if code is not None:
            whole = each if each.flags.c_contiguous else np.ascontiguousarray(each)
            count = 2 * whole.size if whole.dtype.kind == "c" else whole.size
            function(whole.ctypes.data, address, count, code)
    return not found.value


@cache
def _code_of(dtype: np.dtype[Any]) -> int | None:
    """The kind of the elements as scan.h has it; None if there is no scan of these."""
    name = f"float{dtype.itemsize * 4}" if dtype.kind == "c" else dtype.name
    return _CODES.get(name)


@cache
def _callable_scan() -> Any:
    function = scan_function()
    return None if function is None else _PROTOTYPE(function)


@cache
def scan_function() -> int | None:
    """The address of the native scan, which runs on every processor, or None if it was not built."""
    return library_function("collage_scan_within")


_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p)


class _NativeCall:
    """A call that runs tasks in the calling thread."""

    def __init__(self, function: int, tasks: Sequence[Task]) -> None:
        self._function = _PROTOTYPE(function)
        self._tasks = tuple(tasks)  # which keep what they read and write
        self._arguments = [(task.a, task.b, task.n, task.c) for task in tasks]

    def __call__(self) -> None:
        for each in self._arguments:
            self._function(*each)


def _task(function: int, scan: Scanned, flag: Flag) -> Task:
    array = scan.array
    return Task(
        function,
        a=int(array.ctypes.data),
        b=int(flag.ctypes.data),
        n=array.size,
        c=scan.code,
        keep=(array, flag),
    )


def _numpy_call(scans: Sequence[Scanned], flag: Flag) -> Call:
    looks: list[Callable[[], bool]] = [_numpy_look(each.floats) for each in scans]

    def run() -> None:
        for look in looks:
            if look():
                flag[0] = 1

    return run


def _numpy_look(scan: Scanned) -> Callable[[], bool]:
    """A function that tells whether the array holds other than ordinary numbers, by the rules of `scan.cpp`."""
    array = scan.array
    if array.dtype.kind in "iu":
        values: Any = array
        low = -INTEGER_LIMIT if array.dtype.kind == "i" else 0
        return lambda: bool(array.size and (values.max() > INTEGER_LIMIT or values.min() < low))
    integer, _ = SCANNED[array.dtype.name]
    limit = limit_bits(array.dtype.name, scan.limit)
    bits = array.view(integer)
    mask, magnitudes = np.iinfo(integer).max, np.empty_like(bits)

    def look() -> bool:
        np.bitwise_and(bits, mask, out=magnitudes)
        return bool(magnitudes.max(initial=0) > limit)

    return look
