"""The NVIDIA driver's library: memory, copies, launches, streams, events and graphs of the GPU that CUDA takes first.

It is called by ctypes, and loaded when it is first needed. What the library refuses is raised with its own words.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from collage.core.cuda import LIBRARY, gpu

__all__ = ["CudaError", "CudaMemoryError", "Driver", "driver", "free_memory", "lost_context"]

log = logging.getLogger(__name__)

_OUT_OF_MEMORY = 2
_FATAL = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720})
"""Errors after which no call of this process succeeds: an illegal address, a failed launch, and the like."""
_NON_BLOCKING, _NO_TIMING, _RELAXED = 1, 2, 2
_L2_CACHE_SIZE = 38
"""CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE of ``cuDeviceGetAttribute``."""

_SIZE, _HANDLE, _ADDRESS, _UNSIGNED = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint
_TO = ctypes.c_void_p
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cuDeviceGet": (_TO, ctypes.c_int),
    "cuDeviceGetAttribute": (_TO, ctypes.c_int, ctypes.c_int),
    "cuDeviceGetPCIBusId": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_TO, ctypes.c_int),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuCtxPushCurrent_v2": (_HANDLE,),
    "cuCtxPopCurrent_v2": (_TO,),
    "cuMemAlloc_v2": (_TO, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemGetInfo_v2": (_TO, _TO),
    "cuMemHostRegister_v2": (_HANDLE, _SIZE, _UNSIGNED),
    "cuMemHostUnregister": (_HANDLE,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _HANDLE, _SIZE, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (_HANDLE, _ADDRESS, _SIZE, _HANDLE),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _HANDLE),
    "cuMemsetD8Async": (_ADDRESS, ctypes.c_ubyte, _SIZE, _HANDLE),
    "cuModuleLoadData": (_TO, _HANDLE),
    "cuModuleGetFunction": (_TO, _HANDLE, ctypes.c_char_p),
    "cuModuleUnload": (_HANDLE,),
    "cuLaunchKernel": (_HANDLE, *(_UNSIGNED,) * 7, _HANDLE, _HANDLE, _HANDLE),
    "cuStreamCreate": (_TO, _UNSIGNED),
    "cuStreamDestroy_v2": (_HANDLE,),
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamWaitEvent": (_HANDLE, _HANDLE, _UNSIGNED),
    "cuStreamBeginCapture_v2": (_HANDLE, ctypes.c_int),
    "cuStreamEndCapture": (_HANDLE, _TO),
    "cuEventCreate": (_TO, _UNSIGNED),
    "cuEventDestroy_v2": (_HANDLE,),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuEventSynchronize": (_HANDLE,),
    "cuEventElapsedTime": (_TO, _HANDLE, _HANDLE),
    "cuGraphInstantiateWithFlags": (_TO, _HANDLE, ctypes.c_ulonglong),
    "cuGraphLaunch": (_HANDLE, _HANDLE),
    "cuGraphDestroy": (_HANDLE,),
    "cuGraphExecDestroy": (_HANDLE,),
}


class CudaError(RuntimeError):
    """The driver refuses a call. The message names the call and the driver's error."""

    def __init__(self, call: str, status: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.status = status


class CudaMemoryError(MemoryError):
    """The GPU has less memory left than is asked for."""


_lost = ""


def lost_context(*, ask: bool = False) -> str:
    """The error after which this process can use the GPU no longer, or "" while it can.

    With ``ask`` the driver is asked, where this process uses it: a library's kernel may have failed with nobody asking
    since.
    """
    if ask and not _lost and _driver is not None:
        try:
            driver().enter()
            driver().synchronize(driver().stream)
        except CudaError as error:
            log.info("the GPU: %s", error)
    return _lost


def free_memory() -> int | None:
    """The bytes of the GPU's memory that nobody has, or None where no GPU tells that."""
    try:
        gpu = driver()
        gpu.enter()
        return gpu.free_bytes()
    except (OSError, CudaError) as error:
        log.info("the GPU: %s", error)
        return None


_driver: Driver | None = None
_making = threading.Lock()


def _renew_lock() -> None:
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def driver() -> Driver:
    """The driver of this process. Raises NoGpuError where there is no GPU."""
    global _driver
    if _driver is None:
        gpu()
        with _making:  # two would have a stream each, and take turns with themselves only
            if _driver is None:
                _driver = Driver(ctypes.CDLL(LIBRARY))
    return _driver


class Driver:
    """Calls of the driver's library, in the primary context of GPU 0, which other libraries share.

    Handles and addresses are integers. Each thread calls ``enter`` before the others.
    """

    def __init__(self, library: Any) -> None:
        """Take the library that was loaded. Raises CudaError."""
        self._library = library
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments
        self._pid = os.getpid()
        self._device = self._integer("cuDeviceGet", 0)
        self._context = self._handle("cuDevicePrimaryCtxRetain", self._device)
        self.enter()
        self.stream = self.new_stream()
        """The stream that everything runs on which asks for no other."""
        self.turn = threading.RLock()
        """Whose turn it is: threads share the stream and the handles of libraries, and what one of them enqueues would
        become part of the graph that another one captures."""

    # Contexts

    def enter(self) -> None:
        """Make the context current in the calling thread, where others may have set another one since the last time.

        Raises CudaError, also in a forked child.
        """
        if os.getpid() != self._pid:
            raise CudaError("cuCtxSetCurrent", 3, "the GPU cannot be used after a fork: load the module again")
        self.call("cuCtxSetCurrent", self._context)

    @property
    def l2_bytes(self) -> int:
        """The size of the L2 cache in bytes."""
        return self._integer("cuDeviceGetAttribute", _L2_CACHE_SIZE, self._device)

    @property
    def pci_bus_id(self) -> str:
        """The GPU's place on the PCI bus, by which other libraries know it."""
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, len(text), self._device)
        return text.value.decode()

    def free_bytes(self) -> int:
        """The bytes of the GPU's memory that nobody has."""
        free, whole = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole))
        return free.value

    # Memory

    def allocate(self, nbytes: int) -> int:
        """The address of so many new bytes. Raises CudaMemoryError where there are not so many."""
        found = ctypes.c_uint64()
        status = self._library.cuMemAlloc_v2(ctypes.byref(found), max(1, nbytes))
        if status == _OUT_OF_MEMORY:
            free = self.free_bytes() >> 20
            raise CudaMemoryError(
                f"out of memory of the GPU: {nbytes >> 20} MiB wanted, {free} MiB free; end what else runs there "
                "(nvidia-smi lists it), or compile with --device cpu"
            )
        self._check("cuMemAlloc_v2", status)
        return found.value

    def free(self, address: int) -> None:
        """Free what ``allocate`` gave. Nothing is raised."""
        self._drop("cuMemFree_v2", address)

    def lock_pages(self, address: int, nbytes: int) -> bool:
        """Lock memory of the host, so that copies of it run by themselves. Whether that could be done."""
        return not self._library.cuMemHostRegister_v2(address, nbytes, 0)

    def unlock_pages(self, address: int) -> None:
        """Unlock memory that ``lock_pages`` has locked. Nothing is raised."""
        self._drop("cuMemHostUnregister", address)

    def to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes of the host to the GPU, once all before it on the stream has been done."""
        self.call("cuMemcpyHtoDAsync_v2", target, source, nbytes, stream)

    def to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes of the GPU to the host."""
        self.call("cuMemcpyDtoHAsync_v2", target, source, nbytes, stream)

    def within(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes of the GPU to another place there."""
        self.call("cuMemcpyDtoDAsync_v2", target, source, nbytes, stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Fill bytes of the GPU."""
        self.call("cuMemsetD8Async", target, byte, nbytes, stream)

    # Kernels

    def load(self, code: bytes) -> int:
        """The module of machine code or PTX."""
        return self._handle("cuModuleLoadData", code)

    def unload(self, module: int) -> None:
        """Unload a module. Nothing is raised."""
        self._drop("cuModuleUnload", module)

    def function(self, module: int, name: str) -> int:
        """A function of a module."""
        return self._handle("cuModuleGetFunction", module, name.encode())

    @property
    def launch(self) -> Callable[..., int]:
        """The function ``cuLaunchKernel`` itself. ``check`` its status."""
        found: Callable[..., int] = self._library.cuLaunchKernel
        return found

    # Streams, events and graphs

    def new_stream(self) -> int:
        """A stream that waits for no other."""
        return self._handle("cuStreamCreate", _NON_BLOCKING)

    def drop_stream(self, stream: int) -> None:
        """Destroy a stream. Nothing is raised."""
        self._drop("cuStreamDestroy_v2", stream)

    def synchronize(self, stream: int) -> None:
        """Wait until everything on the stream has been done. Raises CudaError for what has failed there."""
        self.call("cuStreamSynchronize", stream)

    def new_event(self, *, timing: bool = False) -> int:
        """An event, which may note when it happened."""
        return self._handle("cuEventCreate", 0 if timing else _NO_TIMING)

    def drop_event(self, event: int) -> None:
        """Destroy an event. Nothing is raised."""
        self._drop("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int) -> None:
        """Let the event happen when all before it on the stream has been done."""
        self.call("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        """Let what follows on the stream wait for the event."""
        self.call("cuStreamWaitEvent", stream, event, 0)

    def elapsed_ms(self, first: int, last: int) -> float:
        """The milliseconds between two events that note the time, once the last one has happened."""
        self.call("cuEventSynchronize", last)
        found = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(found), first, last)
        return found.value

    def captured(self, stream: int, enqueue: Callable[[], None]) -> int:
        """An executable graph of what ``enqueue`` enqueues on the stream, and on streams that wait for it."""
        self.call("cuStreamBeginCapture_v2", stream, _RELAXED)
        graph = ctypes.c_void_p()
        try:
            enqueue()
        except BaseException:
            if not self._library.cuStreamEndCapture(stream, ctypes.byref(graph)) and graph.value:
                self._library.cuGraphDestroy(graph)
            raise
        self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        try:
            return self._handle("cuGraphInstantiateWithFlags", graph, 0)
        finally:
            self._library.cuGraphDestroy(graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        """Run an executable graph, once all before it on the stream has been done."""
        self.call("cuGraphLaunch", graph, stream)

    def drop_graph(self, graph: int) -> None:
        """Destroy an executable graph. Nothing is raised."""
        self._drop("cuGraphExecDestroy", graph)

    # Calls

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library by name. Raises CudaError for any answer but success."""
        self._check(name, getattr(self._library, name)(*arguments))

    def _drop(self, name: str, what: int) -> None:
        """Call what gives something back, from whatever thread a finalizer runs in, and leave its context as it is."""
        if os.getpid() == self._pid and not self._library.cuCtxPushCurrent_v2(self._context):
            getattr(self._library, name)(what)
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def check(self, status: int) -> None:
        """Raise CudaError unless a launch could be enqueued."""
        if status:
            self._check("cuLaunchKernel", status)

    def _check(self, name: str, status: int) -> None:
        global _lost
        if not status:
            return
        error = CudaError(name, status, self._words(status))
        if status in _FATAL:
            _lost = _lost or str(error)
        raise error

    def _words(self, status: int) -> str:
        """The name and the explanation of an error."""
        found = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            if not getattr(self._library, function)(status, ctypes.byref(text)) and text.value:
                found.append(text.value.decode(errors="replace"))
        return ": ".join(found) or f"error {status}"

    def _handle(self, name: str, *arguments: Any) -> int:
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value or 0

    def _integer(self, name: str, *arguments: Any) -> int:
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value
