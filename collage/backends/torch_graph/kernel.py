"""A graph of PyTorch as a kernel: bound to arrays, and on a GPU replayed as a CUDA graph of PyTorch's own."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.torch_graph.precision import whole_float32
from collage.backends.torch_graph.tensors import array_of, tensor_of, tensor_on
from collage.core.cuda_driver import lost_context
from collage.graph.dataflow import Array
from collage.kernel.device_array import on_device
from collage.kernel.device_call import DeviceCall
from collage.kernel.kernel import Call, Kernel, Session

__all__ = ["TorchKernel", "TorchSession", "exactly"]

log = logging.getLogger(__name__)

_NARROW_SUMS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


@contextmanager
def exactly() -> Iterator[None]:
    """PyTorch computes here without gradients, in whole float32, by the fastest of cuDNN's algorithms.

    Sums of products in float16 and bfloat16 are float32, too.
    """
    import torch

    products = torch.backends.cuda.matmul
    sums = {name: _with_split(products, name) for name in _NARROW_SUMS}
    narrow = products.allow_fp16_accumulation
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)
    with whole_float32():
        try:
            for name in _NARROW_SUMS:
                setattr(products, name, False)
            products.allow_fp16_accumulation = False
            with torch.no_grad(), flags:
                yield
        finally:
            for name, value in sums.items():
                setattr(products, name, value)
            products.allow_fp16_accumulation = narrow


def _with_split(products: Any, name: str) -> Any:
    """The setting, with its second half where this version of PyTorch has one: about sums in several parts."""
    split = getattr(products, f"{name}_split_k", None)
    value = getattr(products, name)
    return value if split is None else (value, split)


class TorchKernel(Kernel):
    """``module`` takes inputs and outputs, and fills the outputs; ``types`` are shapes and dtypes of these."""

    own_threads = True

    def __init__(self, module: Any, types: Sequence[tuple[tuple[int, ...], Any]], device: str) -> None:
        self._module, self._types = module, types
        if device == "cuda":
            weakref.finalize(self, _give_back).atexit = False

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says. Raises UnsupportedError where the graph makes other outputs."""
        arrays = (*inputs, *outputs)
        tensors = tuple(map(tensor_on, arrays))
        for tensor, (shape, dtype) in zip(tensors[len(inputs) :], self._types, strict=True):
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise UnsupportedError(f"PyTorch makes {dtype}{list(shape)}, not {tensor.dtype}{list(tensor.shape)}")
        if any(map(on_device, arrays)):
            return _OnGpu(self, self._module, tensors)
        return partial(_run, self, self._module, tensors)


def _run(kernel: TorchKernel, module: Any, tensors: Sequence[Any]) -> None:
    with exactly():
        module(*tensors)


class _OnGpu(DeviceCall):
    """The first run loads what it needs, the second one is captured, and later ones replay the graph."""

    capturable = False
    many = True

    def __init__(self, kernel: TorchKernel, module: Any, tensors: Sequence[Any]) -> None:
        self._keep = kernel
        self._module, self._tensors = module, tensors
        self._warm, self._refused = False, False
        self._graph: Any = None
        self._streams: dict[int, Any] = {}

    def enqueue(self, stream: int) -> None:
        import torch

        if stream not in self._streams:
            self._streams[stream] = torch.cuda.ExternalStream(stream)
        with torch.cuda.stream(self._streams[stream]):
            if self._graph is None and self._warm and not self._refused:
                self._capture(self._streams[stream])
            if self._graph is not None:
                self._graph.replay()
                return
            with exactly():
                self._module(*self._tensors)
            self._warm = True

    def _capture(self, stream: Any) -> None:
        import torch

        graph = torch.cuda.CUDAGraph()
        try:
            with exactly(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._module(*self._tensors)
        except RuntimeError as error:
            if lost_context(ask=True):
                raise
            log.warning("PyTorch's kernels are enqueued one by one: %s", error)
            self._refused = True
            return
        self._graph = graph


class TorchSession(Session):
    """A model of PyTorch on values of the host."""

    def __init__(self, module: Any, device: str) -> None:
        """``module`` gives its outputs as a tuple."""
        self._module, self._device = module, device

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        with exactly():
            made = self._module(*(tensor_of(each).to(self._device) for each in inputs))
            return [array_of(each) for each in made]


def _give_back() -> None:
    """Give memory that PyTorch keeps for itself back to the GPU, for kernels of others."""
    import torch

    try:
        torch.cuda.empty_cache()
    except RuntimeError as error:  # the context is lost, and nothing of it is there any more
        log.debug("PyTorch's memory on the GPU: %s", error)
