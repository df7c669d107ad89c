"""ONNX Runtime as a graph engine: a subgraph becomes a session bound to preallocated buffers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.backends.engine import Layer
from collage.backends.onnx_engine import EXACT_QUOTIENTS, PROFILED_RUNS, OnnxEngine, with_quotients_noted
from collage.errors import InputError
from collage.graph.dataflow import Array
from collage.kernel.frames import Artifact
from collage.kernel.kernel import Call, Kernel, Session
from collage.kernel.model_artifact import model_artifact, protobuf, weights_of
from collage.kernel.options import DYNAMIC_INT8, BuildOptions
from collage.kernel.target import has_exact_int8_sums

if TYPE_CHECKING:
    from onnx import ModelProto

_SPIN_US = "30"
"""How long idle threads spin if another engine's kernel may be next, in microseconds.

Long enough to bridge the gaps between operators, short enough to be out of the next kernel's way.
"""

_NO_SPINNING = "no spinning"
_ONE_THREAD = "one thread"
"""Small models are done before other threads have woken."""
_PLAIN_LAYOUT = "plain layout"
"""The optimisation level "extended", which has no blocked layouts (NCHWc): some networks change these all the time."""


_OPTIMISED = "optimised.onnx"
_RAN = "_kernel_time"
"""The end of the names of events in a profile that are runs of nodes."""

UNOPTIMISED = "unoptimised"
"""The operators one by one, as the model has them. Their results are taken for right."""

_NOT_IN_NUMPY = ("bfloat16", "float8", "float4", "int4", "int2")
"""Words that are in the names of types which numpy lacks."""


BY_RECIPROCALS = ("DivMulFusion", "MatMulScaleFusion")
"""Fusions that multiply by the rounded reciprocal of a divisor. Models that may round quotients do without."""
_RECURRENT = (b"LSTM", b"GRU")
"""Operators that end the process on an empty batch. Their names are in the protobuf."""
_ROUNDING = (b"Floor", b"Ceil", b"Round", EXACT_QUOTIENTS.encode())


class OnnxRuntime(OnnxEngine):
    """The engine of last resort. It takes everything that has an ONNX form, the opaque nodes included."""

    name = "onnxruntime"
    keeps_nan = True
    draws = True
    takes_apart = True
    requirement = "onnxruntime"

    def precisions(self, options: BuildOptions) -> Sequence[str]:
        """Gives its own quantisation to 8 bits, with numbers that are scaled in each call."""
        exact = DYNAMIC_INT8 in options.precisions and has_exact_int8_sums()
        return (DYNAMIC_INT8,) if exact else ()

    def codegen_model(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The artifact of a whole model, with a note if it rounds or compares quotients."""
        return super().codegen_model(with_quotients_noted(model), options)

    def compile_onnx(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The serialised model, whose weights are quantised here if that is asked for."""
        if options.variant.precision == DYNAMIC_INT8:
            from collage.backends.dynamic_quantisation import quantised

            model = quantised(model)
        return super().compile_onnx(model, options)

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """A session on the artifact, with a thread pool of its own."""
        return _SessionKernel(self._load(artifact, options), own_threads=options.threads > 1)

    def session(self, model: Artifact, options: BuildOptions) -> Session:
        """A session for any model that ONNX Runtime takes. Values of types that numpy lacks go through other types."""
        session = self._load(model, options)
        infos = [*session.get_inputs(), *session.get_outputs()]
        if not any(word in info.type for info in infos for word in _NOT_IN_NUMPY):
            data = protobuf(model_artifact(model))
            return _BoundableSession(session, data if any(each in data for each in _RECURRENT) else b"")
        import onnx

        from collage.frontend.engine_models import in_one_piece
        from collage.frontend.read.unsupported_dtypes import plain_interface

        names = [each.name for each in session.get_inputs()]
        plain = plain_interface(onnx.load_from_string(in_one_piece(model_artifact(model))))
        session = self._load(plain.model.SerializeToString(), options)
        return ModelSession(names, partial(plain.run, partial(session.run, None)))

    def layer_times(self, artifact: Artifact, inputs: Sequence[Array], options: BuildOptions) -> Sequence[Layer]:
        """The nodes of the optimised graph, whose values have the names of the original ones."""
        import onnx

        from collage.core.temporary import TemporaryFolder

        original = onnx.load_model_from_string(protobuf(model_artifact(artifact))).graph.node
        with TemporaryFolder("profile") as folder:
            session = self._load(artifact, options, folder)
            feeds = dict(zip((each.name for each in session.get_inputs()), inputs, strict=True))
            for _ in range(PROFILED_RUNS):
                session.run(None, feeds)
            events = json.loads(Path(session.end_profiling()).read_bytes())
            nodes = onnx.load(str(folder / _OPTIMISED), load_external_data=False).graph.node
        times: dict[str, list[float]] = {}
        for event in events:
            if event["name"].endswith(_RAN):
                times.setdefault(event["name"].removesuffix(_RAN), []).append(event["dur"])
        producers = {name: node.name for node in original for name in node.output if name}
        at = {name: position for position, node in enumerate(nodes) for name in node.output}
        layers = []
        for node in nodes:
            # With blocked layouts a node's value has a new name, and the node has the value's old one.
            made = [*node.output, node.name.removesuffix("_nchwc")]
            names = frozenset(producers[name] for name in made if name in producers)
            reads = tuple(at[name] for name in node.input if name in at)
            layers.append(Layer(node.op_type, median(times.get(node.name, [0.0])), names, reads))
        return layers

    @staticmethod
    def _load(model: Artifact, options: BuildOptions, profile: Path | None = None) -> Any:
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
        if profile is not None:
            settings.enable_profiling = True
            settings.profile_file_prefix = str(profile / "profile")
            settings.optimized_model_filepath = str(profile / _OPTIMISED)
            settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        found = model_artifact(model)
        data, weights = protobuf(found), weights_of(found)
        if weights:
            values = [ort.OrtValue.ortvalue_from_numpy(each) for each in weights.values()]
            settings.add_external_initializers([*weights], values)
        rounds = b"Div" in data and any(each in data for each in _ROUNDING)
        return ort.InferenceSession(
            data,
            settings,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=[*(BY_RECIPROCALS if rounds else ()), *without_dropout_eliminated(data)],
        )

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


def without_dropout_eliminated(data: bytes) -> tuple[str, ...]:
    """Optimisations of ONNX Runtime that the model, a protobuf, must do without: they drop dropout in training mode."""
    if b"Dropout" not in data:
        return ()
    import onnx

    from collage.frontend.read.randomness import Randomness

    return ("EliminateDropout",) if Randomness(onnx.load_from_string(data)).any else ()


class ModelSession(Session):
    """A function of named inputs that gives all outputs, as a session."""

    def __init__(self, names: Sequence[str], run: Callable[[dict[str, Any]], Sequence[Any]]) -> None:
        self._names = names
        self._run = run

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return list(self._run(dict(zip(self._names, inputs, strict=True))))


class _BoundableSession(Session):
    """An ``InferenceSession`` on the CPU.

    Runs go to the session inside it, which takes the names of the outputs, and does not look at the inputs in Python
    first. If ``recurrent`` is the model's protobuf, empty inputs are checked before.
    """

    def __init__(self, session: Any, recurrent: bytes) -> None:
        self._recurrent = recurrent
        self._session = session
        self._inner = session._sess
        self._names = [each.name for each in session.get_inputs()]
        self._outputs = [each.name for each in session.get_outputs()]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        feeds = dict(zip(self._names, inputs, strict=True))
        if self._recurrent:
            self._refuse_empty(feeds)
        return list(self._inner.run(self._outputs, feeds, None))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return _SessionKernel(self._session, own_threads=True).bind(inputs, outputs)

    def _refuse_empty(self, feeds: Mapping[str, Any]) -> None:
        """Raises InputError if ONNX Runtime would end the process (see ``engine_faults.empty_recurrent``)."""
        shapes = {name: each.shape for name, each in feeds.items() if isinstance(each, np.ndarray)}
        if not any(0 in shape for shape in shapes.values()):
            return
        import onnx

        from collage.backends.engine_faults.empty_recurrent import empty_recurrent

        if problem := empty_recurrent(onnx.load_from_string(self._recurrent), shapes):
            raise InputError(f"{problem} for these inputs, with which ONNX Runtime would end the process.")

    def bind_inputs(self, inputs: Sequence[Array]) -> Callable[[], Iterable[Any]]:
        if self._recurrent:
            self._refuse_empty(dict(zip(self._names, inputs, strict=True)))
        kinds = [info.type for info in self._session.get_outputs()]
        if not all(each.startswith("tensor(") for each in kinds) or "tensor(string)" in kinds:
            return super().bind_inputs(inputs)  # fetching strings from a binding ends the process
        return _InputBinding(self._inner, _with_inputs(self._session, inputs), self._outputs, inputs)


class _InputBinding(Iterable[Any]):
    """A call of a session on fixed inputs, and the outputs of the last one, which become new arrays when they are read.

    A run writes into the outputs of the one before it. Once one fails at that, since they get other shapes, each run
    makes its own.
    """

    def __init__(self, session: Any, binding: Any, outputs: Sequence[str], inputs: Sequence[Array]) -> None:
        import onnxruntime as ort

        self._keep = inputs
        self._binding = binding._iobinding
        self._run = session.run_with_iobinding
        device = ort.OrtDevice.make("cpu", 0)._get_c_device()
        self._outputs = [(name, device) for name in outputs]
        self._reuses = True
        self._bind_outputs()

    def __call__(self) -> Iterable[Any]:
        if not self._reuses:
            self._bind_outputs()
        try:
            self._run(self._binding, None)
        except Exception:
            if not self._reuses:
                raise
            self._reuses = False
            return self()
        return self

    def _bind_outputs(self) -> None:
        self._binding.clear_binding_outputs()
        for each in self._outputs:
            self._binding.bind_output(*each)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._binding.copy_outputs_to_cpu())


class _SessionKernel(Kernel):
    def __init__(self, session: Any, *, own_threads: bool) -> None:
        self._session = session
        self.own_threads = own_threads

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        from onnx.helper import np_dtype_to_tensor_dtype

        binding = _with_inputs(self._session, inputs)
        for info, array in zip(self._session.get_outputs(), outputs, strict=True):
            kind = np_dtype_to_tensor_dtype(array.dtype)
            binding.bind_output(info.name, "cpu", 0, kind, array.shape, array.ctypes.data)
        run: Call = partial(self._session._sess.run_with_iobinding, binding._iobinding, None)
        return run


def _with_inputs(session: Any, inputs: Sequence[Array]) -> Any:
    """A binding of the session that reads the arrays. Raises ValueError for arrays of other shapes than its own."""
    from onnx.helper import np_dtype_to_tensor_dtype

    binding = session.io_binding()
    for info, array in zip(session.get_inputs(), inputs, strict=True):
        _check_shape(info, array)
        kind = np_dtype_to_tensor_dtype(array.dtype)
        binding.bind_input(info.name, "cpu", 0, kind, array.shape, array.ctypes.data)
    return binding


def _check_shape(info: Any, array: Array) -> None:
    """Raises ValueError for an input of another shape than the model has, if it has one."""
    if info.shape and (
        len(info.shape) != array.ndim
        or any(isinstance(e, int) and e != own for e, own in zip(info.shape, array.shape, strict=True))
    ):
        raise ValueError(f"the model has {info.name} of shape {info.shape}, the buffer {array.shape}")
