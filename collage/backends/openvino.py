"""OpenVINO as a graph engine: a subgraph becomes a compiled model bound to preallocated buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.engine import Layer
from collage.backends.onnx_engine import PROFILED_RUNS, OnnxEngine
from collage.backends.onnxruntime import ModelSession
from collage.core.library_text import library_text
from collage.frontend.engine_models import at_addresses, in_one_piece, input_names
from collage.graph.dataflow import Array
from collage.graph.storage import BF16
from collage.kernel.buffers import aligned_empty
from collage.kernel.frames import Artifact, Framed
from collage.kernel.given_away import GivenAway
from collage.kernel.kernel import Call, Kernel, Session
from collage.kernel.model_artifact import model_artifact
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage.frontend.subgraph import Subgraph

_NOT_PINNED = "not pinned"
"""With this profile the system may move threads away from cores that somebody else uses."""
_ONE_THREAD = "one thread"
_PRODUCTS = (
    "onnx.Conv",
    "onnx.MatMul",
    "onnx.Gemm",
    "onnx.Einsum",
    "onnx.Attention",
    "onnx.LSTM",
    "onnx.GRU",
)


class OpenVino(OnnxEngine):
    """Takes what OpenVINO's ONNX frontend takes, in float32 arithmetic throughout, unless bfloat16 is allowed.

    It turns 64-bit integers into 32-bit ones, float64 into float32, divides, compares and reduces 32-bit integers in
    float32, and saturates those of 8 bits where ONNX wraps around. Integers up to 2^24 are right.
    """

    name = "openvino"
    requirement = "'collage-compiler[openvino]'"
    takes_apart = True

    def faults(self, model: ModelProto) -> Mapping[int, str]:
        """See ``engine_faults.openvino_faults``."""
        from collage.backends.engine_faults.openvino_faults import faulty_nodes

        return faulty_nodes(model)

    def accepts(self, domain: str, op_type: str) -> bool | str:
        """Whether the operator is of the standard domain."""
        return True if domain in ("", "ai.onnx") else f"OpenVINO does not know the operator domain {domain}"

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        """Pinned threads, tuned for latency; then threads that are not pinned; then no other threads."""
        return ("", *((_NOT_PINNED, _ONE_THREAD) if options.threads > 1 else ()))

    def precisions(self, options: BuildOptions) -> Sequence[str]:
        """bfloat16, if OpenVINO computes in it by default."""
        return (BF16,) if BF16 in options.precisions and _has_bf16() else ()

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """Convolutions and products have variants in the reduced precisions, too."""
        if not any(_multiplies(node.op) for node in subgraph.operators):
            return (ALL_PLAIN,)
        return (ALL_PLAIN, *(Variant(precision=each) for each in self.precisions(options)))

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """Compile the artifact for this machine (20-50 ms for one operator)."""
        return _CompiledKernel(self._compile(artifact, options))

    def session(self, model: Artifact, options: BuildOptions) -> Session:
        """A session for any model that OpenVINO takes: of tensors, which may have dynamic shapes.

        bfloat16 goes in and comes out as float32, and is rounded by numpy: OpenVINO's own casts do not round to the
        nearest number, and between two casts of the model it does not round at all.
        """
        compiled = self._compile(model, options)
        ports = [*compiled.inputs, *compiled.outputs]
        if not any(port.get_element_type().get_type_name() == "bf16" for port in ports):
            return _ModelSession(compiled, model)
        import onnx

        from collage.frontend.read.unsupported_dtypes import plain_interface

        names = input_names(model)
        plain = plain_interface(onnx.load_from_string(in_one_piece(model_artifact(model))))
        data = plain.model.SerializeToString()
        session = _ModelSession(self._compile(data, options), data)
        return ModelSession(names, partial(plain.run, lambda feeds: session.run([*feeds.values()])))

    def layer_times(self, artifact: Artifact, inputs: Sequence[Array], options: BuildOptions) -> Sequence[Layer]:
        """The nodes of OpenVINO's execution graph, of which each names the ONNX nodes that went into it."""
        compiled = self._compile(artifact, options, PERF_COUNT=True)
        request = compiled.create_infer_request()
        times: dict[str, list[float]] = {}
        for _ in range(PROFILED_RUNS):
            request.infer([*inputs])
            for each in request.get_profiling_info():
                times.setdefault(each.node_name, []).append(each.real_time.total_seconds() * 1e6)
        nodes = compiled.get_runtime_model().get_ordered_ops()
        at = {node.get_friendly_name(): position for position, node in enumerate(nodes)}
        return [
            Layer(
                node.rt_info["layerType"].astype(str),
                median(times.get(node.get_friendly_name(), [0.0])),
                frozenset(node.rt_info["originalLayersNames"].astype(str).split(",")),
                tuple(at[each.get_node().get_friendly_name()] for each in node.input_values()),
            )
            for node in nodes
        ]

    def check_proto(self, model: ModelProto) -> None:
        """Raises ValueError, too, if running the model could corrupt this process's memory."""
        _refuse_impossible_size(model)
        _refuse_unsafe(model)
        super().check_proto(model)

    def codegen_model(self, model: ModelProto, options: BuildOptions) -> bytes:
        """Raises UnsupportedError also if running the model could corrupt this process's memory."""
        try:
            _refuse_unsafe(model)
        except ValueError as error:
            raise UnsupportedError(str(error)) from error
        return super().codegen_model(model, options)

    def compile_onnx(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The serialised model. Raises UnsupportedError also if a size is below 1, which OpenVINO does not check."""
        try:
            _refuse_impossible_size(model)
        except ValueError as error:
            raise UnsupportedError(str(error)) from error
        return super().compile_onnx(model, options)

    @staticmethod
    def _compile(model: Artifact, options: BuildOptions, **more: Any) -> Any:
        config = {
            **more,
            "INFERENCE_NUM_THREADS": 1 if options.profile == _ONE_THREAD else options.threads,
            "PERFORMANCE_HINT": "LATENCY",
            # Without this a CPU with bfloat16 arithmetic would quietly compute in bfloat16.
            "INFERENCE_PRECISION_HINT": options.variant.precision or "f32",
            # And without this, data that meet weights of 8 bits would quietly be rounded to 8 bits: 0.7 % in a product.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        if options.profile == _NOT_PINNED:
            config["ENABLE_CPU_PINNING"] = False
        core, found = _core(), model_artifact(model)
        if isinstance(found, Framed):
            read = core.read_model(at_addresses(found))
        else:
            read = core.read_model(found)
        return core.compile_model(read, "CPU", config)


def _refuse_impossible_size(model: ModelProto) -> None:
    """Raises ValueError for a size below 1: with a RoiAlign of no columns OpenVINO 2026.4 writes beside its buffers."""
    from collage.backends.engine_faults.free_sizes import impossible_size

    if where := impossible_size(model):
        raise ValueError(f"OpenVINO does not check sizes, and there is {where}")


def _refuse_unsafe(model: ModelProto) -> None:
    """Raises ValueError for models that OpenVINO 2026.4 takes unchecked, and that make it write beside its buffers.

    It does not compare the size that a Reshape is given with that of its data: of 24 elements and a shape of zeros it
    makes an empty tensor, and a later model crashes. Nor does it look for operands and attributes that an operator does
    not have.
    """
    from onnx.checker import ValidationError

    from collage.backends.engine_faults.free_sizes import free_size
    from collage.frontend.read.apart import check_model

    where = free_size(model)
    if where:
        raise ValueError(f"OpenVINO does not check the sizes that the model's inputs give to {where}")
    try:
        check_model(model)
    except ValidationError as error:
        raise ValueError(
            f"OpenVINO runs models that are no valid ONNX, with any result: {library_text(error)}"
        ) from error


def _multiplies(op: str) -> bool:
    """Whether an operator computes products of matrices or convolutions, for which there are kernels for bfloat16."""
    from collage.frontend.relax.op_kinds import COMPUTE_BOUND

    return op in COMPUTE_BOUND or op.startswith(_PRODUCTS)


@cache
def _has_bf16() -> bool:
    """Whether OpenVINO has kernels for bfloat16 on this machine."""
    try:
        import openvino  # noqa: F401
    except ImportError:
        return False
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@cache
def _core() -> Any:
    """The core of the process, of which there is never a second one.

    Each core gives the thread another stack for signals, and later restores the one before. With several cores that
    one may be gone by then, and the next signal (Ctrl-C) ends the process.
    """
    import openvino as ov

    return ov.Core()


class _ModelSession(Session):
    """A session that keeps buffers for inputs of fixed shapes: a new tensor for each call costs more than a copy."""

    def __init__(self, compiled: Any, model: Artifact) -> None:
        self._compiled = compiled  # a request does not keep the model alive
        self._model = model
        self._request = compiled.create_infer_request()
        self._outputs = compiled.outputs
        self._buffers: dict[int, Array] = {}
        for index, port in enumerate(compiled.inputs):
            buffer = _buffer(port)
            if buffer is not None:
                self._buffers[index] = buffer
                self._request.set_input_tensor(index, _shared(buffer))

    def _read(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs that something reads: OpenVINO drops the others."""
        if len(inputs) == len(self._compiled.inputs):
            return inputs
        return [inputs[at] for at in self._positions]

    @cached_property
    def _positions(self) -> list[int]:
        names = input_names(self._model)
        return [names.index(*port.get_names().intersection(names)) for port in self._compiled.inputs]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        others = {}
        for index, value in enumerate(self._read(inputs)):
            buffer = self._buffers.get(index)
            if buffer is not None and (value.dtype, value.shape) == (buffer.dtype, buffer.shape):
                np.copyto(buffer, value)
            else:
                others[index] = value
        try:
            results = self._request.infer(others or None, share_inputs=True, share_outputs=True)
        finally:
            for index in self._buffers.keys() & others.keys():  # OpenVINO has put its own tensor there
                self._request.set_input_tensor(index, _shared(self._buffers[index]))
        return [np.array(results[port]) for port in self._outputs]

    def bind_inputs(self, inputs: Sequence[Array]) -> Callable[[], Iterable[Any]]:
        """A call without copies of the inputs, nor of the outputs whose shapes OpenVINO knows."""
        request = self._compiled.create_infer_request()
        for index, (port, array) in enumerate(zip(self._compiled.inputs, self._read(inputs), strict=True)):
            _check_port("input", port, array)
            request.set_input_tensor(index, _shared(array))
        given = [_given_away(request, index, port) for index, port in enumerate(self._outputs)]
        prepared = [each for each in given if each is not None]

        def run() -> Iterable[Any]:
            for each in prepared:
                each.prepare()
            results = request.infer(share_inputs=True, share_outputs=True)
            # OpenVINO writes the others to the same memory in the next call.
            return (
                np.array(results[port]) if own is None else own.give()
                for port, own in zip(self._outputs, given, strict=True)
            )

        return run

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return _CompiledKernel(self._compiled).bind(self._read(inputs), outputs)


def _buffer(port: Any) -> Array | None:
    """An array for the input, if its shape is known and numpy has its type."""
    found = _layout(port)
    return None if found is None else aligned_empty(*found)


def _given_away(request: Any, index: int, port: Any) -> GivenAway | None:
    """Arrays for an output that the request writes, if its shape is known and numpy has its type."""
    found = _layout(port)
    if found is None:
        return None
    return GivenAway(*found, lambda array: request.set_output_tensor(index, _shared(array)))


def _layout(port: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """The shape and dtype of a port's arrays; None if the shape is open, or numpy does not have the type."""
    import openvino as ov

    shape, kind = port.get_partial_shape(), port.get_element_type()
    if not shape.is_static or kind.bitwidth < 8 or kind == ov.Type.string:
        return None
    dtype = kind.to_dtype()
    return (tuple(shape.to_shape()), np.dtype(dtype)) if ov.Type(dtype) == kind else None


def _shared(array: Array) -> Any:
    """A tensor on the array's memory."""
    import openvino as ov

    return ov.Tensor(array, shared_memory=True)


class _CompiledKernel(Kernel):
    own_threads = True

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        request = self._compiled.create_infer_request()
        for index, (port, array) in enumerate(zip(self._compiled.inputs, inputs, strict=True)):
            _check_port("input", port, array)
            request.set_input_tensor(index, _shared(array))
        for index, (port, array) in enumerate(zip(self._compiled.outputs, outputs, strict=True)):
            _check_port("output", port, array)
            request.set_output_tensor(index, _shared(array))

        # This has 8 us of overhead, start_async with wait 19. Without share_outputs every output would be copied.
        return partial(request.infer, share_inputs=True, share_outputs=True)


def _check_port(what: str, port: Any, array: Array) -> None:
    shape = port.get_partial_shape()
    if not shape.is_static or tuple(shape.to_shape()) != array.shape:
        raise UnsupportedError(f"OpenVINO gives {what} {port.any_name} the shape {shape}, not {array.shape}")
    if port.get_element_type().to_dtype() != array.dtype:
        raise UnsupportedError(
            f"OpenVINO gives {what} {port.any_name} the type {port.get_element_type()}, not {array.dtype}"
        )
