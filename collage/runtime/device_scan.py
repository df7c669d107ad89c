"""Scans of values on a GPU for NaN, infinities and huge magnitudes, as ``collage.native.scan`` makes them on the host.

The kernel is a few lines of CUDA C++, which NVRTC compiles when a program needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.cuda_kernels.launch import Prepared, StreamLaunches, load_code
from collage.backends.tvm_cuda_codegen.nvrtc import compile_cubin
from collage.core.cuda import gpu
from collage.core.cuda_driver import driver
from collage.errors import CollageError
from collage.graph.magnitudes import INTEGER_LIMIT, limit_bits
from collage.graph.storage import CUDA
from collage.kernel.buffers import aligned_empty
from collage.kernel.device_array import empty_on, lock_pages, put
from collage.kernel.device_call import DeviceCall
from collage.native.scan import Flag, Scanned

__all__ = ["AfterScan", "DeviceFlag", "scan_on_device"]

_THREADS, _MOST_BLOCKS = 256, 528
"""The threads of a block, and the most blocks: four for each multiprocessor of an H100."""

_CODE = """
// The least and the largest legal value of the elements, as unsigned integers after ``flipped`` has been added.
extern "C" __global__ void __launch_bounds__(256) scan_{bits}(
    const {unsigned}* values, const unsigned long long* limits, int* flag) {{
  {unsigned} mask = ({unsigned})limits[1], offset = ({unsigned})limits[2], most = ({unsigned})limits[3];
  bool found = false;
  for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < limits[0]; i += gridDim.x * 256ull)
    found = found || ({unsigned})((values[i] & mask) + offset) > most;
  if (found) *flag = 1;
}}
"""
_UNSIGNED = {2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


class DeviceFlag:
    """A flag in the GPU's memory that scans set, and the one on the host that it is passed on to."""

    def __init__(self, found: Flag) -> None:
        self.array = empty_on(CUDA, (1,), "int32")
        put(self.array, np.zeros(1, np.int32))
        self._found = found
        self._fetched = aligned_empty((1,), "int32")
        lock_pages(self._fetched)
        self._fetched[0] = 0

    def fetch(self, stream: int) -> None:
        """Enqueue a copy to the host, and clear the flag on the GPU for the next run."""
        gpu_ = driver()
        address = int(self.array.ctypes.data)
        gpu_.to_host(int(self._fetched.ctypes.data), address, 4, stream)
        gpu_.fill(address, 0, 4, stream)

    def pass_on(self) -> None:
        """Set the host's flag if the copy is set; the copy has arrived."""
        if self._fetched[0]:
            self._found[0] = 1


class AfterScan(DeviceCall):
    """A launch, and scans of what it reads before it, on the same stream."""

    def __init__(self, scans: Sequence[DeviceCall], call: DeviceCall) -> None:
        self._calls = (*scans, call)
        self.with_host, self.capturable, self.many = call.with_host, call.capturable, call.many

    def enqueue(self, stream: int) -> None:
        for each in self._calls:
            each.enqueue(stream)


def scan_on_device(scan: Scanned, flag: DeviceFlag) -> DeviceCall:
    """A scan of an array on the GPU. Raises CollageError without NVRTC."""
    flat = scan.floats.array
    size = flat.dtype.itemsize
    limits = empty_on(CUDA, (4,), "uint64")
    put(limits, np.array([flat.size, *_limits(flat.dtype, scan.limit)], np.uint64))
    code = load_code(_cubin(size, gpu().architecture))
    blocks = max(1, min(_MOST_BLOCKS, -(-flat.size // _THREADS)))
    arguments = tuple(int(each.ctypes.data) for each in (flat, limits, flag.array))
    function = code.function(f"scan_{8 * size}")
    return StreamLaunches([Prepared(code, function, (blocks, 1, 1), (_THREADS, 1, 1), arguments)], (scan, limits, flag))


def _limits(dtype: np.dtype[np.generic], limit: float) -> tuple[int, int, int]:
    """What is masked, what is added then, and what the sum must not exceed, all unsigned, in the elements' bits."""
    everything = (1 << 8 * dtype.itemsize) - 1
    if dtype.kind == "i":
        return everything, INTEGER_LIMIT, 2 * INTEGER_LIMIT
    if dtype.kind == "u":
        return everything, 0, INTEGER_LIMIT
    return everything >> 1, 0, limit_bits(dtype.name, limit)


@cache
def _cubin(size: int, architecture: str) -> bytes:
    try:
        return compile_cubin(_CODE.format(bits=8 * size, unsigned=_UNSIGNED[size]), architecture)
    except UnsupportedError as error:
        raise CollageError(f"values on the GPU cannot be scanned: {error}") from error
