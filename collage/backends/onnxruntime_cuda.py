"""ONNX Runtime's provider for CUDA as an engine on whole models, bound to arrays in the GPU's memory.

It has never run on a GPU. Its binding is tested with the provider for CPUs.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from collage.backends.base import Availability, UnsupportedError
from collage.backends.cuda import NEVER_RUN
from collage.backends.cuda_engine import CudaEngine
from collage.backends.onnx_engine import EXACT_QUOTIENTS, serialised, with_quotients_noted
from collage.backends.onnxruntime import BY_RECIPROCALS, ModelSession
from collage.graph.dataflow import Array
from collage.graph.storage import CUDA
from collage.kernel.device_array import on_device
from collage.kernel.device_call import DeviceCall
from collage.kernel.kernel import Call, Kernel, Session
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage.frontend.subgraph import Subgraph

log = logging.getLogger(__name__)

_GRAPH = "CUDA graph"
"""ONNX Runtime captures its launches and replays them. It refuses models of which the CPU has to run a part."""


class OnnxRuntimeCuda(CudaEngine):
    """Takes whole models, in their own precision: TF32 is off. What the GPU cannot run is run on the CPU by it."""

    name = "onnxruntime_cuda"
    keeps_nan = True
    extra = "onnxruntime-gpu"
    untried = NEVER_RUN
    provider: ClassVar[str] = "CUDAExecutionProvider"
    memory: ClassVar[str] = CUDA
    """ONNX Runtime's name of the memory that arrays are in."""

    def library(self) -> Availability:
        """The version of the package for GPUs, which also has the provider's library. It is not imported for that."""
        try:
            version = metadata.version("onnxruntime-gpu")
        except metadata.PackageNotFoundError:
            return Availability(reason="not installed: pip install --force-reinstall --no-deps onnxruntime-gpu")
        if not _has_provider():
            return Availability(
                reason="the package onnxruntime has taken the place of onnxruntime-gpu: "
                "pip install --force-reinstall --no-deps onnxruntime-gpu"
            )
        return Availability(version)

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        """Launches one by one, and as a graph."""
        return ("", _GRAPH)

    def reassociates(self, subgraph: Subgraph, variant: Variant) -> bool:
        """True, since cuDNN may choose Winograd's algorithm."""
        return True

    def codegen_model(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The serialised model, with a note where it rounds quotients. Raises UnsupportedError when it is too large."""
        return serialised(with_quotients_noted(model))

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """A kernel that makes a session for each binding. Raises UnsupportedError where the provider is not loaded."""
        return _SessionKernel(self, bytes(artifact), options)

    def session(self, model: bytes, options: BuildOptions) -> Session:
        """A session on values of the host."""
        import onnx

        if b"Div" in model:
            model = serialised(with_quotients_noted(onnx.load_model_from_string(model)))
        loaded = self.opened(model, options, 0)
        return ModelSession([each.name for each in loaded.get_inputs()], lambda feeds: loaded.run(None, feeds))

    def opened(self, model: bytes, options: BuildOptions, stream: int) -> Any:
        """An ``InferenceSession`` whose launches are on the stream, or on one of its own where that is 0.

        Raises UnsupportedError where the provider is not there.
        """
        import onnxruntime as ort

        from collage.frontend.ort_session import session_options

        if hasattr(ort, "preload_dlls") and self.provider == "CUDAExecutionProvider":
            with redirect_stdout(io.StringIO()) as said:  # it prints what it does not find
                ort.preload_dlls()  # CUDA's libraries that came as wheels
            log.debug("ONNX Runtime: %s", said.getvalue())
        settings = session_options()
        settings.intra_op_num_threads = options.threads
        found = ort.InferenceSession(
            model,
            settings,
            providers=self.providers(options, stream),
            disabled_optimizers=[*BY_RECIPROCALS] if EXACT_QUOTIENTS.encode() in model else None,
        )
        if self.provider not in found.get_providers():
            raise UnsupportedError(
                f"ONNX Runtime does not load its {self.provider}: it needs CUDA's libraries and cuDNN, in versions of "
                "its own"
            )
        return found

    def providers(self, options: BuildOptions, stream: int) -> list[Any]:
        """What a session is given: the provider with its options, and the CPU's for what that cannot run."""
        own = {
            "device_id": "0",
            "use_tf32": "0",
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            "cudnn_conv_use_max_workspace": "1",
        }
        if stream:
            own |= {"user_compute_stream": str(stream)}
        if options.profile == _GRAPH:
            own |= {"enable_cuda_graph": "1"}
        return [(self.provider, own), "CPUExecutionProvider"]


class _SessionKernel(Kernel):
    own_threads = True

    def __init__(self, engine: OnnxRuntimeCuda, model: bytes, options: BuildOptions) -> None:
        self._engine, self._model, self._options = engine, model, options
        self._first: Any = self._session()  # what cannot be loaded is known now

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says. A graph has fixed addresses, so each binding has its own session."""
        import onnxruntime as ort
        from onnx.helper import np_dtype_to_tensor_dtype

        session, self._first = self._first or self._session(), None
        binding = session.io_binding()
        memory = self._engine.memory
        for infos, arrays, bound in (
            (session.get_inputs(), inputs, binding.bind_input),
            (session.get_outputs(), outputs, binding.bind_output),
        ):
            for info, array in zip(infos, arrays, strict=True):
                kind = np_dtype_to_tensor_dtype(array.dtype)
                bound(info.name, memory, 0, kind, array.shape, int(array.ctypes.data))
        settings = ort.RunOptions()
        if any(map(on_device, (*inputs, *outputs))):
            settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
        call = _Run(session, binding, settings, (*inputs, *outputs))
        return call if any(map(on_device, (*inputs, *outputs))) else call.run

    def _session(self) -> Any:
        stream = 0
        if self._engine.device == CUDA:
            from collage.core.cuda_driver import driver

            gpu = driver()
            gpu.enter()
            stream = gpu.stream
        return self._engine.opened(self._model, self._options, stream)


class _Run(DeviceCall):
    """A run of a session on the stream that it was made for, which is the one that all kernels use by default."""

    capturable = False  # it replays a graph of its own, or has steps on the host between its launches
    many = True

    def __init__(self, session: Any, binding: Any, settings: Any, keep: Sequence[Array]) -> None:
        self._keep = session, keep
        self._run, self._binding, self._settings = session.run_with_iobinding, binding, settings

    def enqueue(self, stream: int) -> None:
        self.run()

    def run(self) -> None:
        """Run the session, on the host too as far as it has to be."""
        self._run(self._binding, self._settings)


def _has_provider() -> bool:
    spec = find_spec("onnxruntime")
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return any((Path(each) / "capi" / "libonnxruntime_providers_cuda.so").exists() for each in folders)
