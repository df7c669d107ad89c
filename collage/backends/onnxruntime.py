"""ONNX Runtime as a graph engine: a subgraph becomes a session bound to preallocated buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from collage.backends.onnx_engine import OnnxEngine
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel, Session
from collage.kernel.options import DYNAMIC_INT8, BuildOptions

if TYPE_CHECKING:
    from onnx import ModelProto

_SPIN_US = "30"
"""How long idle threads spin when another engine's kernel may be next, in microseconds.

Long enough to bridge the gaps between operators, short enough to be out of the next kernel's way. DCGAN on two
cores, alternating with OpenVINO: 0.87 ms and 0.81 ms for the two; spinning on without end 1.56 and 6.43, not
spinning at all 1.41 and 1.30.
"""

_NO_SPINNING = "no spinning"
_ONE_THREAD = "one thread"
"""Small models are done before other threads have woken."""
_PLAIN_LAYOUT = "plain layout"
"""The optimisation level "extended", which has no blocked layouts (NCHWc): some networks change these all the time."""


UNOPTIMISED = "unoptimised"
"""The operators one by one, as the model has them. Their results are taken for right."""

_NOT_IN_NUMPY = ("bfloat16", "float8", "float4", "int4", "int2")
"""Words that are in the names of types which numpy lacks."""


class OnnxRuntime(OnnxEngine):
    """The engine of last resort. It takes everything that has an ONNX form, the opaque nodes included."""

    name = "onnxruntime"
    requirement = "onnxruntime"

    def precisions(self, options: BuildOptions) -> Sequence[str]:
        """Gives its own quantisation to 8 bits, with numbers that are scaled in each call."""
        return (DYNAMIC_INT8,) if DYNAMIC_INT8 in options.precisions else ()

    def compile_onnx(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The serialised model, whose weights are quantised here where that is asked for."""
        if options.variant.precision == DYNAMIC_INT8:
            from collage.backends.dynamic_quantisation import quantised

            model = quantised(model)
        return super().compile_onnx(model, options)

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """A session on the artifact, with a thread pool of its own."""
        return _SessionKernel(self._load(artifact, options), own_threads=options.threads > 1)

    def session(self, model: bytes, options: BuildOptions) -> Session:
        """A session for any model that ONNX Runtime takes. Values of types that numpy lacks go through other types."""
        session = self._load(model, options)
        infos = [*session.get_inputs(), *session.get_outputs()]
        names = [each.name for each in session.get_inputs()]
        if not any(word in info.type for info in infos for word in _NOT_IN_NUMPY):
            own_threads = options.threads > 1 and options.profile != _ONE_THREAD
            kernel = _SessionKernel(session, own_threads=own_threads)
            return ModelSession(names, partial(session.run, None), kernel)
        import onnx

        from collage.frontend.unsupported_dtypes import plain_interface

        plain = plain_interface(onnx.load_from_string(model))
        session = self._load(plain.model.SerializeToString(), options)
        return ModelSession(names, partial(plain.run, partial(session.run, None)))

    @staticmethod
    def _load(model: bytes, options: BuildOptions) -> Any:
        import onnxruntime as ort

        from collage.frontend.ort_session import session_options

        settings = session_options()
        settings.intra_op_num_threads = 1 if options.profile == _ONE_THREAD else options.threads
        if options.profile == _PLAIN_LAYOUT:
            settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        if options.profile == UNOPTIMISED:
            settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if options.profile in (_NO_SPINNING, UNOPTIMISED):
            settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        settings.inter_op_num_threads = 1
        if not options.exclusive:
            settings.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
        return ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        """All optimisations with spinning threads, then without one of the two, and then without other threads.

        A model is quantised anew for each of them, which takes seconds, so that 8 bits have the usual ones only.
        """
        if options.variant.precision:
            return ("",)
        return ("", _PLAIN_LAYOUT, *((_NO_SPINNING, _ONE_THREAD) if options.threads > 1 else ()))

    def settings(self, options: BuildOptions) -> str:
        """Whether idle threads spin."""
        return "spinning" if options.exclusive else f"spinning {_SPIN_US} us"


class ModelSession(Session):
    """A function of named inputs that gives all outputs, as a session. A ``kernel`` runs it on given arrays."""

    def __init__(
        self,
        names: Sequence[str],
        run: Callable[[dict[str, Any]], Sequence[Any]],
        kernel: Kernel | None = None,
    ) -> None:
        self._names = names
        self._run = run
        self._kernel = kernel

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return list(self._run(dict(zip(self._names, inputs, strict=True))))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call | None:
        return None if self._kernel is None else self._kernel.bind(inputs, outputs)


class _SessionKernel(Kernel):
    def __init__(self, session: Any, *, own_threads: bool) -> None:
        self._session = session
        self.own_threads = own_threads

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        from onnx.helper import np_dtype_to_tensor_dtype

        binding = self._session.io_binding()
        for info, array in zip(self._session.get_inputs(), inputs, strict=True):
            _check_shape(info, array)
            kind = np_dtype_to_tensor_dtype(array.dtype)
            binding.bind_input(info.name, "cpu", 0, kind, array.shape, array.ctypes.data)
        for info, array in zip(self._session.get_outputs(), outputs, strict=True):
            kind = np_dtype_to_tensor_dtype(array.dtype)
            binding.bind_output(info.name, "cpu", 0, kind, array.shape, array.ctypes.data)
        run: Call = partial(self._session._sess.run_with_iobinding, binding._iobinding, None)
        return run


def _check_shape(info: Any, array: Array) -> None:
    """Raises ValueError for an input of another shape than the model has, where it has one."""
    if info.shape and (
        len(info.shape) != array.ndim
        or any(isinstance(e, int) and e != own for e, own in zip(info.shape, array.shape, strict=True))
    ):
        raise ValueError(f"the model has {info.name} of shape {info.shape}, the buffer {array.shape}")
