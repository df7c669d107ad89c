"""A stand-in for TensorRT's Python interface: engines are ONNX models, which run in ONNX Runtime on the GPU's memory.

It needs the stand-in for the driver, whose streams it enqueues on. An operator ``Tan`` is not parsed, and nothing is
built for ``Sin``.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime

__version__ = "11.4.0"

_NAMES = {np.dtype(kind): name for name, kind in (("FLOAT", np.float32), ("INT64", np.int64))}
_RUNS: list[Any] = []
"""What the stand-in for the driver calls by number. It is never forgotten, since graphs may hold it."""


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _call(number: int) -> None:
    _RUNS[number]()


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING = range(3)

    def log(self, severity: Any, message: str) -> None:
        raise NotImplementedError


class NetworkDefinitionCreationFlag:
    STRONGLY_TYPED = 1


class BuilderFlag:
    TF32 = "TF32"


class TensorLocation:
    DEVICE, HOST = "DEVICE", "HOST"


class Config:
    """IBuilderConfig."""

    def __init__(self) -> None:
        self.cache: Any = None
        self.cleared: list[str] = []

    def clear_flag(self, flag: str) -> None:
        self.cleared.append(flag)

    def create_timing_cache(self, data: bytes) -> Any:
        if data not in (b"", b"timed"):
            return None
        return SimpleNamespace(data=data, serialize=lambda: b"timed")

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        self.cache = cache
        return True


class Builder:
    """The engine is the ONNX model with its tensors renamed. Keeps the configurations it was given."""

    configs: list[Config] = []  # noqa: RUF012

    def __init__(self, logger: ILogger) -> None:
        self.logger = logger

    def create_network(self, flags: int) -> Any:
        assert flags == 1 << 1  # strongly typed
        return SimpleNamespace(model=None)

    def create_builder_config(self) -> Config:
        self.configs.append(Config())
        return self.configs[-1]

    def build_serialized_network(self, network: Any, config: Config) -> bytes | None:
        assert config.cleared == ["TF32"]
        graph = network.model.graph
        if any(node.op_type == "Sin" for node in graph.node):
            self.logger.log(ILogger.WARNING, "not this")
            self.logger.log(ILogger.ERROR, "no tactic for Sin")
            return None
        for info, tensor in zip(graph.input, network.inputs, strict=True):
            graph.node.insert(0, onnx.helper.make_node("Identity", [tensor.name], [info.name]))
            info.name = tensor.name
        for info, tensor in zip(graph.output, network.outputs, strict=True):
            graph.node.append(onnx.helper.make_node("Identity", [info.name], [tensor.name]))
            info.name = tensor.name
        data: bytes = network.model.SerializeToString()
        return data


class OnnxParser:
    num_errors = 1

    def __init__(self, network: Any, logger: ILogger) -> None:
        self.network = network

    def parse(self, model: bytes) -> bool:
        proto = onnx.load_model_from_string(model)
        self.network.model = proto
        for what in ("input", "output"):
            tensors = [SimpleNamespace(name=info.name) for info in getattr(proto.graph, what)]
            setattr(self.network, f"{what}s", tensors)
            setattr(self.network, f"num_{what}s", len(tensors))
            setattr(self.network, f"get_{what}", tensors.__getitem__)
        return all(node.op_type != "Tan" for node in proto.graph.node)

    def get_error(self, index: int) -> Any:
        return SimpleNamespace(desc=lambda: "Tan is not known")


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self.logger = logger

    def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
        if plan == b"of another version":
            self.logger.log(ILogger.ERROR, "the plan is of another version")
            return None
        return Engine(plan)


class Engine:
    """ICudaEngine."""

    def __init__(self, plan: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(plan, options, providers=["CPUExecutionProvider"])
        model = onnx.load_model_from_string(plan)
        self.infos = {info.name: info.type.tensor_type for info in (*model.graph.input, *model.graph.output)}

    def get_tensor_shape(self, name: str) -> list[int]:
        return [dim.dim_value for dim in self.infos[name].shape.dim]

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name=_NAMES[onnx.helper.tensor_dtype_to_np_dtype(self.infos[name].elem_type)])

    def get_tensor_location(self, name: str) -> str:
        return TensorLocation.DEVICE

    def create_execution_context(self) -> Context:
        return Context(self)


class Context:
    """IExecutionContext."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.addresses: dict[str, int] = {}

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return address % 256 == 0

    def execute_async_v3(self, stream: int) -> bool:
        views = {name: self._view(name) for name in self.addresses}
        session = self.engine.session

        def run() -> None:
            results = session.run(None, {each.name: views[each.name] for each in session.get_inputs()})
            for info, result in zip(session.get_outputs(), results, strict=True):
                views[info.name][...] = result

        _RUNS.append(run)
        driver = ctypes.CDLL("libcuda.so.1")
        return not driver.collage_standin_call(ctypes.c_void_p(stream), _call, len(_RUNS) - 1)

    def _view(self, name: str) -> Any:
        kind = onnx.helper.tensor_dtype_to_np_dtype(self.engine.infos[name].elem_type)
        shape = self.engine.get_tensor_shape(name)
        raw = (ctypes.c_char * (int(np.prod(shape)) * kind.itemsize)).from_address(self.addresses[name])
        return np.frombuffer(raw, kind).reshape(shape)
