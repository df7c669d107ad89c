"""TensorRT as a graph engine: a subgraph becomes an engine for this GPU, and its bytes go into the module file.

Written against the Python interface of TensorRT 10.16 to 11.4 and never run on a GPU. What is tested is our side of its
interface, on a stand-in.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.backends.base import Availability, UnsupportedError
from collage.backends.cuda import NEVER_RUN
from collage.backends.cuda_engine import CudaEngine
from collage.backends.cuda_kernels.copies import CopiesOnDevice
from collage.backends.onnx_engine import OnnxEngine
from collage.core.cuda import gpu
from collage.core.surroundings import cache_folder
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.graph.storage import CUDA
from collage.kernel.device_array import empty_on
from collage.kernel.device_call import DeviceCall
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

_ALIGNMENT = 256
"""In bytes, of the addresses of tensors. Only a part of a concatenation that is made in its place may lack it."""

_NOT_INSTALLED = "not installed: pip install 'collage-compiler[tensorrt]'; needs an NVIDIA GPU"


class TensorRt(CudaEngine, OnnxEngine):
    """Takes what TensorRT's ONNX parser takes, in the model's own precision: TF32 is off.

    Inputs and outputs are in the GPU's memory. Its parser narrows 64-bit numbers.
    """

    name = "tensorrt"
    extra = "tensorrt"
    untried = NEVER_RUN
    requirement = "'collage-compiler[tensorrt]'"

    def library(self) -> Availability:
        """The version of TensorRT, or what to install."""
        installed = next(filter(None, map(_version, _DISTRIBUTIONS)), "")
        return Availability(installed) if installed else Availability(reason=_NOT_INSTALLED)

    def available(self) -> Availability:
        """The version of TensorRT and the GPU that engines are built for, or what is missing."""
        return super().available() if self.library() else self.library()

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
        runtime = trt.Runtime(_logger(trt, said))
        engine = runtime.deserialize_cuda_engine(bytes(artifact))
        if engine is None:
            raise RuntimeError(f"TensorRT cannot load the engine: {'; '.join(said) or 'it gave no reason'}")
        return _EngineKernel(runtime, engine, said)


class _EngineKernel(Kernel):
    own_threads = True

    def __init__(self, runtime: Any, engine: Any, said: list[str]) -> None:
        self._runtime = runtime  # it has the logger, and lives as long as its engines
        self._engine, self._said = engine, said

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says. Each binding has a context with its own memory for values inside."""
        named = [
            *((f"input{index}", array) for index, array in enumerate(inputs)),
            *((f"output{index}", array) for index, array in enumerate(outputs)),
        ]
        for name, array in named:
            _check_tensor(self._engine, name, array)
        del self._said[:]
        context = self._engine.create_execution_context()
        if context is None:
            raise RuntimeError(f"TensorRT cannot run the engine: {'; '.join(self._said) or 'it gave no reason'}")
        aligned = [_aligned(array) for _, array in named]
        for (name, _), array in zip(named, aligned, strict=True):
            if not context.set_tensor_address(name, int(array.ctypes.data)):
                raise RuntimeError(f"TensorRT does not take the memory of {name}")
        moved = [(own, array) for own, (_, array) in zip(aligned, named, strict=True) if own is not array]
        before = [(own, array) for own, array in moved if any(array is each for each in inputs)]
        after = [(array, own) for own, array in moved if any(array is each for each in outputs)]
        return _Bound(self, context, [*inputs, *outputs, *aligned], CopiesOnDevice(before), CopiesOnDevice(after))


class _Bound(DeviceCall):
    """A context that runs on the arrays whose addresses it was given, between copies of those that are not aligned."""

    many = True

    def __init__(
        self,
        kernel: _EngineKernel,
        context: Any,
        arrays: Sequence[Array],
        before: CopiesOnDevice,
        after: CopiesOnDevice,
    ) -> None:
        self._keep = kernel, arrays
        self._context, self._before, self._after = context, before, after

    def enqueue(self, stream: int) -> None:
        self._before.enqueue(stream)
        if not self._context.execute_async_v3(stream):
            raise RuntimeError("TensorRT could not launch the engine")
        self._after.enqueue(stream)


def _aligned(array: Array) -> Array:
    """The array, or an own one of its type where it does not begin as TensorRT needs it."""
    return empty_on(CUDA, array.shape, array.dtype) if array.ctypes.data % _ALIGNMENT else array


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
    name = "".join(each if each.isalnum() else "-" for each in gpu().name)
    return cache_folder() / f"tensorrt-{version}-{name}.timings"


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
