"""Whether the parts work on the GPU that is here, from the smallest on: each check is a step.

A check returns numbers, and raises an error where they are wrong. Later parts show little where these fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import Backend
from collage.backends.engine import as_engine
from collage.core.cuda_driver import driver
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.storage import BF16, CUDA, FP16, TF32
from collage.kernel.device_array import empty_on, put, to_host
from collage.kernel.device_call import DeviceCall
from collage.kernel.device_clock import clocks_at_work, device_clocked
from collage.kernel.options import BuildOptions
from collage.native.scan import Scanned
from collage.runtime.device_launches import DeviceLaunch, DeviceLaunches
from collage.runtime.device_scan import DeviceFlag, scan_on_device
from scripts.lib.errors import largest, scaled_error
from scripts.lib.gpu.failures import faulty_kernel, killed_process
from scripts.lib.gpu.gaps import by_events_us
from scripts.lib.gpu.half import in_half

_TOLERANCE = 1e-4
_REDUCED = (TF32, FP16, BF16)
_ELEMENTS = 1 << 16


def checks() -> Mapping[str, Callable[[], Any]]:
    """The checks in order, by name."""
    return {
        "memory": memory,
        "clocks": clocks_under_load,
        "scans": scans,
        "tvm kernel": lambda: one_kernel("tvm_cuda", _softmax()),
        "tvm reduction": lambda: one_kernel("tvm_cuda", _normalisation()),
        "tvm kernel of a float16 model": lambda: one_kernel("tvm_cuda", in_half(_softmax())),
        "cublas product": lambda: one_kernel("cublas", _product("Relu"), *_REDUCED),
        "cublas gelu": lambda: one_kernel("cublas", _product("Gelu")),
        "cublas product of a float16 model": lambda: one_kernel("cublas", in_half(_product("Relu"))),
        "cudnn device": cudnn_device,
        "cudnn convolution": lambda: one_kernel("cudnn", _convolution(), *_REDUCED),
        "cudnn pooling": lambda: one_kernel("cudnn", _pooling()),
        "cudnn normalisation": lambda: one_kernel("cudnn", _normalisation()),
        "cudnn attention": lambda: one_kernel("cudnn", _attention(), *_REDUCED),
        "cudnn convolution of a float16 model": lambda: one_kernel("cudnn", in_half(_convolution())),
        "cudnn pooling of a float16 model": lambda: one_kernel("cudnn", in_half(_pooling())),
        "cudnn normalisation of a float16 model": lambda: one_kernel("cudnn", in_half(_normalisation())),
        "cudnn attention of a float16 model": lambda: one_kernel("cudnn", in_half(_attention())),
        "graph": graph,
        "pytorch engine": lambda: engine("torch_cuda"),
        "onnxruntime engine": lambda: engine("onnxruntime_cuda"),
        "tensorrt engine": lambda: engine("tensorrt"),
        "out of memory": out_of_memory,
        "killed process": killed_process,
        "faulty kernel": lambda: faulty_kernel(_product("Relu"), [_random(64, 768)]),
    }


def memory() -> dict[str, Any]:
    """Copies there and back."""
    values = np.random.default_rng(0).normal(size=(257, 1023)).astype(np.float32)
    array = empty_on(CUDA, values.shape, values.dtype)
    put(array, values)
    assert np.array_equal(to_host(array[3:]), values[3:])
    return {"free_mib": driver().free_bytes() >> 20, "l2_mib": driver().l2_bytes >> 20}


def clocks_under_load() -> dict[str, Any]:
    """The clocks that NVML tells at once, and when the GPU has worked for a third of a second."""
    found = {"at once": clocks_at_work(), "later": clocks_at_work(150)}
    return {when: "NVML tells none" if each is None else asdict(each) for when, each in found.items()}


def scans() -> dict[str, Any]:
    """A scan finds NaN, infinities and huge numbers anywhere, and nothing else."""
    found = np.zeros(1, np.int64)
    flag = DeviceFlag(found)
    values = np.full(100_003, 1e11, np.float32)
    array = empty_on(CUDA, values.shape, values.dtype)
    scan = DeviceLaunches([DeviceLaunch(0, scan_on_device(Scanned(array), flag))], flag)
    told = []
    for place, odd in ((0, 1.0), (0, np.nan), (99_999, np.inf), (100_002, -1e13), (7, -1e11)):
        changed = values.copy()
        changed[place] = odd
        put(array, changed)
        found[0] = 0
        scan()
        told.append(int(found[0]))
    assert told == [0, 1, 1, 1, 0], told
    return {"found": told}


def cudnn_device() -> dict[str, Any]:
    """What cuDNN tells of the GPU, for plans that are made without it (``tests/helpers/cuda_standin/h100.json``)."""
    from collage.backends.cudnn_kernels.plans import description_of_device

    return {"json": description_of_device().decode()}


def one_kernel(name: str, model: onnx.ModelProto, *precisions: str, exact: bool = False) -> dict[str, Any]:
    """A small model as one kernel of a backend, each variant compared with ONNX Runtime and timed.

    ``precisions`` are the reduced ones that variants may be in.
    """
    import collage

    backend = collage.default_registry()[name]
    reason = backend.available().reason
    assert not reason, reason
    imported = import_model(model, halves=True)
    subgraph = Subgraph(imported, tuple(range(len(imported.graph.nodes))))
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=kind.shape).astype(kind.dtype) for kind in subgraph.input_types]
    by_value = dict(zip(subgraph.inputs, inputs, strict=True))
    expected = _reference(model, imported, [by_value[value] for value in imported.graph.inputs])
    times = {}
    allowed = BuildOptions(precisions=frozenset(precisions), exact=exact)
    for variant in backend.variants(subgraph, allowed):
        options = replace(allowed, variant=variant)
        times[str(variant)] = _run(backend, subgraph, options, inputs, expected)
    assert times, "no variants"
    return times


def _run(
    backend: Backend, subgraph: Subgraph, options: BuildOptions, inputs: list[Array], expected: list[Array]
) -> Any:
    try:
        kernel = backend.load(backend.codegen(subgraph, options), options)
    except Exception as error:  # one variant may not exist, and the others are worth having
        return {"failed": f"{type(error).__name__}: {error}"[:500]}
    arrays = []
    for storage, values in zip(options.variant.inputs, inputs, strict=True):
        stored = storage.format.store(values)
        arrays.append(empty_on(CUDA, stored.shape, stored.dtype))
        put(arrays[-1], stored)
    outputs = []
    for storage, kind in zip(options.variant.outputs, subgraph.output_types, strict=True):
        made = storage.format.stored_type(kind)
        outputs.append(empty_on(CUDA, made.shape, made.dtype))
    call = kernel.bind(arrays, outputs)
    assert isinstance(call, DeviceCall)
    call()
    errors = []
    for array, storage, kind, wanted in zip(
        outputs, options.variant.outputs, subgraph.output_types, expected, strict=True
    ):
        actual: Any = storage.format.restore(to_host(array), kind).astype(np.float64)
        errors.append(scaled_error(actual, wanted))
    clocked = device_clocked(call)
    return {"error": largest(errors), "us": sorted(clocked() for _ in range(21))[10] / 1e3}


def graph() -> dict[str, Any]:
    """Kernels in a CUDA graph on two streams, where one reads what both others have made."""
    import collage

    backend = collage.default_registry()["tvm_cuda"]
    imported = import_model(_elementwise())
    subgraph = Subgraph(imported, tuple(range(len(imported.graph.nodes))))
    kernel = backend.load(backend.codegen(subgraph, BuildOptions()), BuildOptions())
    a, b, c, d = (empty_on(CUDA, (_ELEMENTS,), "float32") for _ in range(4))
    values = np.linspace(-1, 1, _ELEMENTS, dtype=np.float32)
    put(a, values)

    def bound(source: Array, target: Array) -> DeviceCall:
        call = kernel.bind([source], [target])
        assert isinstance(call, DeviceCall)
        return call

    launches = DeviceLaunches(
        [
            DeviceLaunch(0, bound(a, b), 0),
            DeviceLaunch(1, bound(a, c), 1),
            DeviceLaunch(2, bound(b, d), 1, (0,)),
            DeviceLaunch(3, bound(d, b), 0, (2,)),
        ]
    )
    for _ in range(4):
        launches()
    wanted = np.tanh(np.tanh(np.tanh(values.astype(np.float64))))
    error = float(np.abs(to_host(b) - wanted).max())
    assert error < _TOLERANCE, error
    return {"error": error}


def engine(name: str) -> dict[str, Any]:
    """A whole model on an engine with each of its profiles, compared with ONNX Runtime and timed; or why not."""
    import tempfile
    from pathlib import Path

    import collage
    from scripts.lib.gpu.contenders import engine_contender, largest_error

    registry = collage.default_registry()
    if reason := registry.availability()[name].reason:
        return {"not here": reason}
    model = _convolution()
    inputs = [_random(1, 64, 56, 56)]
    expected = _reference(model, import_model(model), inputs)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "check.onnx"
        onnx.save(model, str(path))
        for profile in as_engine(registry[name]).profiles(BuildOptions()):
            try:
                contender = engine_contender(name, profile, path, inputs)
                error = largest_error(contender.whole(), expected)
                found[profile or "as it is"] = {"error": error, "us": by_events_us(contender.enqueue)}
            except Exception as error:  # one profile may fail, and the others are worth having
                found[profile or "as it is"] = {"failed": f"{type(error).__name__}: {error}"[:500]}
    return found


def out_of_memory() -> dict[str, Any]:
    """More memory than there is raises an error of one line, and the context lives on."""
    try:
        empty_on(CUDA, (1 << 41,), "uint8")
    except MemoryError as error:
        memory()
        return {"message": str(error)}
    raise AssertionError("2 TiB could be had")


def _reference(model: onnx.ModelProto, imported: Model, inputs: list[Array]) -> list[Array]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = dict(zip(imported.input_names, inputs, strict=True))
    return [np.asarray(each, np.float64) for each in session.run(None, feeds)]


def _model(nodes: list[Any], shape: list[int], made: list[int], **weights: Array) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, made)
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    whole = helper.make_graph(nodes, "check", [x], [y], initializers)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _random(*shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(len(shape)).normal(size=shape) / scale).astype(np.float32)


def _softmax() -> onnx.ModelProto:
    return _model([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], [64, 1000], [64, 1000])


def _normalisation() -> onnx.ModelProto:
    node = helper.make_node("LayerNormalization", ["x", "w", "b"], ["y"], axis=-1)
    return _model([node], [64, 768], [64, 768], w=_random(768), b=_random(768))


def _elementwise() -> onnx.ModelProto:
    return _model([helper.make_node("Tanh", ["x"], ["y"])], [_ELEMENTS], [_ELEMENTS])


def _product(activation: str) -> onnx.ModelProto:
    more = {"approximate": "tanh"} if activation == "Gelu" else {}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node(activation, ["s"], ["y"], **more),
    ]
    return _model(nodes, [64, 768], [64, 3072], w=_random(768, 3072, scale=28), b=_random(3072))


def _convolution() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return _model(nodes, [1, 64, 56, 56], [1, 64, 56, 56], w=_random(64, 64, 3, 3, scale=24), b=_random(64))


def _pooling() -> onnx.ModelProto:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return _model([node], [1, 64, 56, 56], [1, 64, 28, 28])


def _attention() -> onnx.ModelProto:
    """Twelve heads of 64 columns, whose keys and values are those of the queries: with itself."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "t"], ["p"]),
        helper.make_node("Mul", ["p", "s"], ["q"]),
        helper.make_node("Softmax", ["q"], ["w"], axis=-1),
        helper.make_node("MatMul", ["w", "x"], ["y"]),
    ]
    return _model(nodes, [1, 12, 128, 64], [1, 12, 128, 64], s=np.array(0.125, np.float32))
