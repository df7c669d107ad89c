"""The process of a contender in a race, which runs one engine with the model.

``collage.bench.race`` starts it. Between bursts it waits for a message, so that the others have the cores.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np

from collage.backends.engine import as_engine
from collage.core.child_process import Failure, read_message, take_over_pipes, write_message
from collage.core.library_text import library_text
from collage.errors import UsageError
from collage.graph.dataflow import Array, TensorType
from collage.graph.storage import HOST
from collage.kernel.buffers import aligned_array, aligned_copy
from collage.kernel.device_array import empty_on, put, to_host
from collage.kernel.device_call import DeviceCall
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from collage.runtime.device_launches import DeviceLaunch, DeviceLaunches

_LEAST_CALLS = 3
_MOST_CALLS = 2000
_WARM_CALLS = 2
_WARM_PART = 0.2


@dataclass(frozen=True)
class Setup:
    """The first message to the process, with the engine and what it runs. The reply is Loaded or Failure.

    ``engine`` is one of ``ENGINES`` or ``REDUCED_ENGINES``, or "module:function" for a contender from outside. Such a
    function takes the setup; it returns a call that runs the model once, and a function that returns the outputs of the
    last run. The module is found as in the parent, since the child has the parent's ``sys.path``.
    Each call reads the arrays in ``inputs``, which are aligned copies in the process: later messages change their
    values. ``path`` is the ONNX file, or the ``.collage`` file for Collage. ``dims`` gives the extents of symbolic
    dimensions that have a name, and ``shapes`` the shapes of inputs that are not static. ``outputs`` has the model's
    order; the type is None if the shape depends on data. ``backend`` is the pickled backend of an engine that another
    package or script has registered. ``drawn`` are the positions of outputs that depend on random numbers. Inputs of
    tables have other rows of the ``pool`` in each call, and outputs that are ``bindable`` are arrays of numbers;
    ``library`` is the file of the library that has made the model.
    """

    engine: str
    path: str
    threads: int
    inputs: Mapping[str, Array]
    outputs: Mapping[str, TensorType | None]
    shapes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, int]
    backend: bytes | None = None
    drawn: frozenset[int] = frozenset()
    pool: Mapping[str, Array] = field(default_factory=dict)
    bindable: frozenset[str] = frozenset()
    library: str = ""


@dataclass(frozen=True)
class Loaded:
    """The reply when the engine has run once; ``outputs`` are its outputs in the model's order.

    ``load_s`` are the seconds from importing the engine to the end of its first run.
    """

    outputs: tuple[Array, ...]
    load_s: float


@dataclass(frozen=True)
class Burst:
    """A message that asks for runs during about ``seconds``. The reply is Samples or Failure."""

    seconds: float


@dataclass(frozen=True)
class Inputs:
    """A message that asks for one run on other inputs, by name. The reply is Ran or Failure.

    Bursts go on with the inputs that were there before.
    """

    arrays: Mapping[str, Array]


@dataclass(frozen=True)
class Ran:
    """The outputs of such a run, in the model's order."""

    outputs: tuple[Array, ...]


@dataclass(frozen=True)
class BurstSamples:
    """The nanoseconds of each call of a burst, without the first calls, which warm up the engine."""

    nanoseconds: tuple[int, ...]


Outputs: TypeAlias = Callable[[], Sequence[Array]]
"""A function that returns the outputs of the last call."""

Engine: TypeAlias = Callable[[Setup], "tuple[Call, Outputs]"]
"""A function that loads the model, and returns a call that runs it and a function that returns its outputs."""


def main() -> None:
    """Serve one parent until its pipe closes."""
    source, sink = take_over_pipes()
    try:
        setup: Setup = read_message(source)
        setup = replace(setup, inputs={name: _own(array) for name, array in setup.inputs.items()})
        turn = _turning(setup)
        try:
            started = time.perf_counter()
            call, outputs = _engine(setup)(setup)
            call()
            load_s = time.perf_counter() - started
            reply: object = Loaded(tuple(map(_kept, outputs())), load_s)
        except Exception as error:  # an engine may raise anything, and the parent is told of it
            reply = Failure(_one_line(error))
        write_message(sink, reply)
        while True:
            message: Burst | Inputs = read_message(source)
            try:
                if isinstance(message, Inputs):
                    reply = Ran(_run_on(message.arrays, setup.inputs, call, outputs))
                else:
                    reply = _run(call, message.seconds, turn)
            except Exception as error:
                reply = Failure(_one_line(error))
            write_message(sink, reply)
    except (EOFError, BrokenPipeError):
        return


def _own(array: Array) -> Array:
    return np.array(array) if array.dtype.kind == "O" else aligned_copy(array)


def _kept(output: Any) -> Array:
    """A copy of an output; of maps, which belong to the rows of a table, their values."""
    if isinstance(output, list) and output and isinstance(output[0], dict):
        output = [[*each.values()] for each in output]
    return np.array(output)


def _turning(setup: Setup) -> Callable[[], None]:
    """A function that fills the inputs with the next rows of the pool: who has seen the same row often is too fast."""
    if not setup.pool:
        return lambda: None
    rows, known = (len(next(iter(each.values()))) for each in (setup.inputs, setup.pool))
    starts = cycle(range(0, max(known - rows, 0) + 1, max(rows, 1)))

    def turn() -> None:
        start = next(starts)
        for name, array in setup.inputs.items():
            array[...] = setup.pool[name][start : start + rows]

    return turn


def _run(call: Call, seconds: float, turn: Callable[[], None]) -> BurstSamples:
    clock = time.perf_counter_ns
    gc.collect()
    gc.disable()
    start, done = clock(), 0
    while done < _WARM_CALLS or clock() - start < _WARM_PART * seconds * 1e9:
        call()
        done += 1
    samples: list[int] = []
    start = clock()
    while len(samples) < _LEAST_CALLS or (clock() - start < seconds * 1e9 and len(samples) < _MOST_CALLS):
        turn()
        before = clock()
        call()
        samples.append(clock() - before)
    gc.enable()
    return BurstSamples(tuple(samples))


def _run_on(arrays: Mapping[str, Array], taken: Mapping[str, Array], call: Call, outputs: Outputs) -> tuple[Array, ...]:
    """Run once on ``arrays``, and give the inputs back what was in them."""
    before = {name: np.array(taken[name]) for name in arrays}
    try:
        for name, array in arrays.items():
            np.copyto(taken[name], array)
        call()
        return tuple(np.array(each) for each in outputs())
    finally:
        for name, array in before.items():
            np.copyto(taken[name], array)


def _collage(setup: Setup) -> tuple[Call, Outputs]:
    """Collage with bound buffers, as the engines have them; without where an engine makes its outputs itself."""
    from collage import api
    from collage.module.shaped import ShapedModule

    module = api.load(setup.path, share=False)
    if isinstance(module, ShapedModule):
        module = module.for_shapes({name: array.shape for name, array in setup.inputs.items()})
    try:
        bound = module.bind(setup.inputs)
    except UsageError:
        last: dict[str, Array] = {}

        def run() -> None:
            last.update(module.run(setup.inputs))

        return run, lambda: [last[name] for name in setup.outputs]
    return bound, lambda: [bound.outputs[name] for name in setup.outputs]


def _onnxruntime(setup: Setup, *, in_8_bits: bool = False) -> tuple[Call, Outputs]:
    """ONNX Runtime with bound buffers and its defaults: all optimisations, and threads that spin."""
    import onnxruntime as ort
    from onnx.helper import np_dtype_to_tensor_dtype

    options = ort.SessionOptions()
    options.intra_op_num_threads = setup.threads
    options.log_severity_level = 4
    for name, extent in setup.dims.items():
        options.add_free_dimension_override_by_name(name, extent)
    model = _quantised(setup.path) if in_8_bits else setup.path
    session: Any = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    texts = any(array.dtype.kind in "OU" for array in setup.inputs.values())
    if texts or (setup.pool and None in setup.outputs.values()):  # texts and maps cannot be bound
        last: list[Any] = []

        def run_unbound() -> None:
            last[:] = session.run(None, dict(setup.inputs))

        return run_unbound, lambda: last
    binding = session.io_binding()
    outputs = {name: aligned_array(kind) for name, kind in setup.outputs.items() if kind is not None}
    free = [name for name in setup.outputs if name not in outputs]
    for arrays, bind in ((setup.inputs, binding.bind_input), (outputs, binding.bind_output)):
        for name, array in arrays.items():
            bind(name, "cpu", 0, np_dtype_to_tensor_dtype(array.dtype), array.shape, array.ctypes.data)
    for name in free:
        binding.bind_output(name, "cpu")

    def run() -> None:
        session.run_with_iobinding(binding)
        assert setup.inputs  # the call keeps the bound arrays alive

    def results() -> Sequence[Array]:
        found = dict(zip([*outputs, *free], binding.get_outputs(), strict=True))
        return [outputs[name] if name in outputs else found[name].numpy() for name in setup.outputs]

    return run, results


def _quantised(path: str) -> bytes:
    """The model in 8 bits, as ONNX Runtime quantises it without samples."""
    import onnx

    from collage.backends.dynamic_quantisation import quantised

    data: bytes = quantised(onnx.load(path)).SerializeToString()
    return data


def _openvino(setup: Setup, precision: str = "f32") -> tuple[Call, Outputs]:
    """OpenVINO tuned for latency, in float32. Without the hint it would use bfloat16 where the CPU has that."""
    import openvino as ov

    core = ov.Core()
    model = core.read_model(setup.path)
    if setup.shapes:
        model.reshape({name: ov.PartialShape(list(shape)) for name, shape in setup.shapes.items()})
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": setup.threads,
        "INFERENCE_PRECISION_HINT": precision,
    }
    request: Any = core.compile_model(model, "CPU", config).create_infer_request()
    for name, array in setup.inputs.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def run() -> None:
        request.infer(share_inputs=True, share_outputs=True)  # 2 % faster on DCGAN than start_async and wait
        assert setup.inputs  # the call keeps the shared arrays alive

    return run, lambda: [request.get_tensor(name).data for name in setup.outputs]


ENGINES: Mapping[str, Engine] = {
    "collage": _collage,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}

OPENVINO_BF16 = "openvino bf16"
REDUCED_ENGINES: Mapping[str, tuple[str, Engine]] = {
    OPENVINO_BF16: ("openvino", partial(_openvino, precision="bf16")),
    "onnxruntime int8": ("onnxruntime", partial(_onnxruntime, in_8_bits=True)),
}
"""Engines in reduced precisions, by name, each with the name of the engine in float32."""

_OF_NAME: Mapping[str, Engine] = {**ENGINES, **{name: load for name, (_, load) in REDUCED_ENGINES.items()}}


def _registered(setup: Setup) -> tuple[Call, Outputs]:
    """A registered engine with its kernel of the whole model, or with its session where a shape is unknown."""
    from collage.frontend.read.load import load_onnx
    from collage.frontend.read.shapes import fix_shapes

    assert setup.backend is not None
    backend = as_engine(pickle.loads(setup.backend))
    options = BuildOptions(threads=setup.threads, exclusive=True)
    model = load_onnx(setup.path)
    fix_shapes(model, setup.shapes)
    inputs = [*setup.inputs.values()]
    kinds = [kind for kind in setup.outputs.values() if kind is not None]
    if len(kinds) == len(setup.outputs):
        kernel = backend.load(backend.codegen_model(model, options), options)
        device = backend.whole_storage().device
        if device != HOST:
            return _with_copies(kernel, device, inputs, kinds)
        outputs = [aligned_array(kind) for kind in kinds]
        call = kernel.bind(inputs, outputs)

        def run_bound() -> None:
            call()
            assert inputs  # the call keeps the bound arrays alive

        return run_bound, lambda: outputs
    session = backend.session(model.SerializeToString(), options)
    last: list[Any] = []

    def run() -> None:
        last[:] = session.run(inputs)

    return run, lambda: last


def _with_copies(
    kernel: Kernel, device: str, inputs: Sequence[Array], kinds: Sequence[TensorType]
) -> tuple[Call, Outputs]:
    """A kernel on another device, with copies from the host and back in each run, as Collage's own runs have them.

    Where it can be captured, it is replayed as a graph from the third run on, as in a module.
    """
    taken = [empty_on(device, each.shape, each.dtype) for each in inputs]
    made = [empty_on(device, kind.shape, kind.dtype) for kind in kinds]
    bound = kernel.bind(taken, made)
    call: Call = DeviceLaunches([DeviceLaunch(0, bound)]) if isinstance(bound, DeviceCall) else bound
    last: list[Array] = []

    def run() -> None:
        for target, source in zip(taken, inputs, strict=True):
            put(target, source)
        call()
        last[:] = map(to_host, made)

    return run, lambda: last


def _engine(setup: Setup) -> Engine:
    if setup.backend is not None:
        return _registered
    module, _, function = setup.engine.partition(":")
    found: Engine = getattr(import_module(module), function) if function else _OF_NAME[setup.engine]
    return found


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {library_text(error)}"
