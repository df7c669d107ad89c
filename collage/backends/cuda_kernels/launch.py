"""Machine code on the GPU, and its functions with all that a launch of them takes."""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from collage.core.cuda_driver import driver
from collage.kernel.device_call import DeviceCall

__all__ = ["Code", "Extent", "Prepared", "StreamLaunches", "load_code"]

Extent = tuple[int, int, int]


class Code:
    """Machine code that is loaded on the GPU for as long as this lives."""

    def __init__(self, cubin: bytes) -> None:
        """Load the code on the GPU. Raises CudaError, as for the machine code of another architecture."""
        gpu = driver()
        gpu.enter()
        self._module = gpu.load(cubin)
        self._functions: dict[str, int] = {}
        weakref.finalize(self, gpu.unload, self._module).atexit = False

    def function(self, name: str) -> int:
        """The handle of a function. Raises CudaError."""
        if name not in self._functions:
            self._functions[name] = driver().function(self._module, name)
        return self._functions[name]


_loaded: WeakValueDictionary[bytes, Code] = WeakValueDictionary()
"""The loaded code of this process. A network has the same code many times."""


def load_code(cubin: bytes) -> Code:
    """The code, which is loaded once. Raises CudaError."""
    digest = hashlib.sha256(cubin).digest()
    found = _loaded.get(digest)
    if found is None:
        found = _loaded[digest] = Code(cubin)
    return found


@dataclass(frozen=True)
class Prepared:
    """One launch, whose arguments are fixed: integers of 8 bytes, which may be addresses, by value."""

    code: Code
    function: int
    grid: Extent
    block: Extent
    arguments: tuple[int, ...]
    _values: Any = field(init=False, repr=False, compare=False)
    _pointers: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        count = max(1, len(self.arguments))
        values = (ctypes.c_uint64 * count)(*self.arguments)
        first, size = ctypes.addressof(values), ctypes.sizeof(ctypes.c_uint64)
        object.__setattr__(self, "_values", values)
        pointers = (ctypes.c_void_p * count)(*(first + size * each for each in range(count)))
        object.__setattr__(self, "_pointers", pointers)

    @property
    def call(self) -> tuple[Any, ...]:
        """What ``cuLaunchKernel`` takes before the stream, and the arguments that it takes after it."""
        return (self.function, *self.grid, *self.block, 0), self._pointers


class StreamLaunches(DeviceCall):
    """Launches one after another on one stream."""

    def __init__(self, launches: Sequence[Prepared], keep: Any) -> None:
        """``keep`` are the arrays that the arguments are addresses of."""
        self._launches = tuple(launches)
        self._keep = keep
        self._calls = [each.call for each in launches]
        self._driver = driver()
        self._launch = self._driver.launch

    def enqueue(self, stream: int) -> None:
        launch, check = self._launch, self._driver.check
        for before, arguments in self._calls:
            check(launch(*before, stream, arguments, None))
