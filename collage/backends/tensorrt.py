"""TensorRT as a graph engine: a subgraph becomes an engine for this GPU, and its bytes go into the module file.

Written against the Python interface of TensorRT 10.16 and 11.4 and never run on a GPU: nothing here is reached on a
machine without an NVIDIA GPU and its driver, where ``available`` says so.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.backends.base import Availability, UnsupportedError
from collage.backends.cuda import NEVER_RUN
from collage.backends.onnx_engine import OnnxEngine
from collage.core.cuda import NoGpuError, gpu
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.graph.storage import CUDA
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage.frontend.subgraph import Subgraph

log = logging.getLogger(__name__)

_DISTRIBUTIONS = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")
"""Distributions each of which has the package ``tensorrt``."""

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
"""The dtypes of inputs and outputs, by TensorRT's names."""


class TensorRt(OnnxEngine):
    """Takes what TensorRT's ONNX parser takes, in the model's own precision: TF32 is off.

    A region's inputs are copied to the GPU and its outputs back on each call, and that is part of its time. As its
    parser narrows 64-bit numbers, it gets integers only where they are small, as OpenVINO does.
    """

    name = "tensorrt"
    device = CUDA
    untried = NEVER_RUN
    requirement = "'collage[tensorrt]'"
    narrow = True

    def available(self) -> Availability:
        """The version of TensorRT and the GPU that engines are built for, or what is missing."""
        installed = next(filter(None, map(_version, _DISTRIBUTIONS)), "")
        if not installed:
            return Availability(reason=f"not installed: pip install {self.requirement}; needs an NVIDIA GPU")
        if not _version("cuda-bindings"):
            return Availability(reason=f"cuda-bindings is missing: pip install {self.requirement}")
        try:
            return Availability(version=f"{installed} on {_gpu()}")
        except NoGpuError as error:
            return Availability(reason=f"{error}; TensorRT runs on NVIDIA GPUs only")

    def reassociates(self, subgraph: Subgraph, variant: Variant) -> bool:
        """True, since its builder may choose Winograd's algorithm, and does not tell which one it chose."""
        return True

    def accepts(self, domain: str, op_type: str) -> bool | str:
        """Whether the operator is of the standard domain."""
        return True if domain in ("", "ai.onnx") else f"TensorRT does not know the operator domain {domain}"

    def compile_onnx(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The serialised engine, built with earlier builds' timings. Raises UnsupportedError when it is refused."""
        data = super().compile_onnx(model, options)
        import tensorrt as trt

        said: list[str] = []
        logger = _logger(trt, said)
        builder = trt.Builder(logger)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, logger)
        if not parser.parse(data):
            reasons = [parser.get_error(index).desc() for index in range(parser.num_errors)]
            raise UnsupportedError(f"TensorRT's parser: {'; '.join(reasons)}")
        # The engine lists its tensors in an order of its own; their names tell the kernel which is which.
        for index in range(network.num_inputs):
            network.get_input(index).name = f"input{index}"
        for index in range(network.num_outputs):
            network.get_output(index).name = f"output{index}"
        config = builder.create_builder_config()
        config.clear_flag(trt.BuilderFlag.TF32)
        file = _timing_cache_path(trt.__version__)
        cache = _read_timings(config, file)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise UnsupportedError(f"TensorRT builds no engine: {'; '.join(said) or 'it gave no reason'}")
        _keep_timings(cache, file)
        return bytes(plan)

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """The engine's kernel. Raises RuntimeError when it was built by another TensorRT or for another GPU."""
        import tensorrt as trt

        said: list[str] = []
        engine = trt.Runtime(_logger(trt, said)).deserialize_cuda_engine(artifact)
        if engine is None:
            raise RuntimeError(f"TensorRT cannot load the engine: {'; '.join(said) or 'it gave no reason'}")
        return _EngineKernel(engine)


class _EngineKernel(Kernel):
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        for what, arrays in (("input", inputs), ("output", outputs)):
            for index, array in enumerate(arrays):
                _check_tensor(self._engine, f"{what}{index}", array)
        return _Bound(self._engine.create_execution_context(), inputs, outputs)


class _Bound:
    """A context with a stream and device memory of its own, which are freed with it."""

    def __init__(self, context: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        from cuda.bindings import runtime as cuda

        self._context = context
        self._arrays = (*inputs, *outputs)  # they are kept, since the copies have their addresses
        self._stream = int(_ask(cuda.cudaStreamCreate()))
        held: list[int] = []
        # When the process ends, the driver frees everything.
        weakref.finalize(self, _release, self._stream, held).atexit = False
        self._before, self._after = [], []
        kinds = cuda.cudaMemcpyKind
        for index, array in enumerate(inputs):
            device = self._memory(f"input{index}", array, held)
            self._before.append(
                (device, array.ctypes.data, array.nbytes, kinds.cudaMemcpyHostToDevice, self._stream)
            )
        for index, array in enumerate(outputs):
            device = self._memory(f"output{index}", array, held)
            self._after.append(
                (array.ctypes.data, device, array.nbytes, kinds.cudaMemcpyDeviceToHost, self._stream)
            )
        self._copy, self._wait = cuda.cudaMemcpyAsync, partial(cuda.cudaStreamSynchronize, self._stream)

    def __call__(self) -> None:
        for copy in self._before:
            _ask(self._copy(*copy))
        if not self._context.execute_async_v3(self._stream):
            raise RuntimeError("TensorRT could not launch the engine")
        for copy in self._after:
            _ask(self._copy(*copy))
        _ask(self._wait())

    def _memory(self, name: str, array: Array, held: list[int]) -> int:
        from cuda.bindings import runtime as cuda

        address = int(_ask(cuda.cudaMalloc(max(1, array.nbytes))))
        held.append(address)
        if not self._context.set_tensor_address(name, address):
            raise RuntimeError(f"TensorRT does not take the memory of {name}")
        return address


def _check_tensor(engine: Any, name: str, array: Array) -> None:
    import tensorrt as trt

    shape, kind = tuple(engine.get_tensor_shape(name)), engine.get_tensor_dtype(name).name
    if shape != array.shape:  # an extent is -1 where it depends on data
        raise UnsupportedError(f"TensorRT gives {name} the shape {shape}, not {array.shape}")
    if _DTYPES.get(kind) != array.dtype.name:
        raise UnsupportedError(f"TensorRT gives {name} the type {kind}, not {array.dtype}")
    if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
        raise UnsupportedError(f"TensorRT reads {name} while it plans, not on the GPU")


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _gpu() -> str:
    """Name of the GPU that CUDA takes by default. Raises NoGpuError, saying what is missing."""
    return gpu().name


def _logger(trt: Any, said: list[str]) -> Any:
    """A logger that keeps errors in ``said`` and passes nothing to stderr."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                said.append(message)

    return Logger()


def _timing_cache_path(version: str) -> Path:
    """Where kernels' timings are kept between builds: a file for each version and GPU, in the user's cache folder."""
    import platformdirs

    gpu = "".join(each if each.isalnum() else "-" for each in _gpu())
    return platformdirs.user_cache_path("collage") / f"tensorrt-{version}-{gpu}.timings"


def _read_timings(config: Any, file: Path) -> Any:
    """Give the build the timings of earlier ones, or an empty cache where there is no file that TensorRT accepts."""
    try:
        kept = file.read_bytes()
    except OSError:
        kept = b""
    for data in (kept, b""):
        cache = config.create_timing_cache(data)
        if cache is not None and config.set_timing_cache(cache, False):
            break
    return cache


def _keep_timings(cache: Any, file: Path) -> None:
    """Replace the file. Where two builds do it at once, the timings of one are lost, and a later build takes longer."""
    from collage.core.new_file import new_file

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_file(file) as stream:
            stream.write(bytes(cache.serialize()))
    except (CollageError, OSError) as error:
        log.debug("TensorRT's timings are not kept: %s", error)


def _ask(answer: tuple[Any, ...]) -> Any:
    """The value in a CUDA call's answer, if it has one. Raises RuntimeError with CUDA's words for an error."""
    from cuda.bindings import runtime as cuda

    error, *values = answer
    if error != cuda.cudaError_t.cudaSuccess:
        raise RuntimeError(f"CUDA: {cuda.cudaGetErrorString(error)[1].decode()}")
    return values[0] if values else None


def _release(stream: int, addresses: Sequence[int]) -> None:
    from cuda.bindings import runtime as cuda

    for address in addresses:
        cuda.cudaFree(address)
    cuda.cudaStreamDestroy(stream)
