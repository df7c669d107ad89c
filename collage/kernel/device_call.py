"""Kernels on a GPU, bound to their buffers: they are enqueued on a stream, and are done some time later."""

from __future__ import annotations

from abc import ABC, abstractmethod

from collage.core.cuda_driver import driver

__all__ = ["DeviceCall"]


class DeviceCall(ABC):
    """A bound kernel that is enqueued on a stream of the GPU. As a call it waits until the kernel is done.

    ``enqueue`` allocates nothing, so that it can be captured in a CUDA graph, unless the call is ``with_host`` or not
    ``capturable``.
    """

    with_host: bool = False
    """Whether it reads or writes memory of the host. It is then enqueued each time, outside of graphs."""
    capturable: bool = True
    """Whether a CUDA graph can hold it. One that replays a graph of its own, as engines do, is in no other."""
    many: bool = False
    """Whether it enqueues many kernels, so that it is faster in a graph also if it is the only launch."""

    @abstractmethod
    def enqueue(self, stream: int) -> None:
        """Enqueue the kernel on a stream. The driver's context is current in the calling thread."""

    def __call__(self) -> None:
        gpu = driver()
        gpu.enter()
        with gpu.turn:
            self.enqueue(gpu.stream)
            gpu.synchronize(gpu.stream)
