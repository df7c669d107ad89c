"""Collage behind ONNX's backend interface, for programs that run models through that interface.

    import collage.onnx_backend as backend

    outputs = backend.run_model(model, [x])          # one list of inputs, in the model's order
    prepared = backend.prepare(model, threads=1)     # or with collage.compile's options
    outputs = prepared.run([x])

A model is compiled on the first run with inputs of certain shapes, and measured and checked with these inputs. Made-up
numbers would not do where an input is a shape or an index. By default little time is spent on measuring (``quick``),
and measurements are forgotten when this process ends, unless ``db`` names a file.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from collage.api import default_registry
from collage.compiler.compile import compile_model
from collage.compiler.task import CompileOptions
from collage.core.temporary import TemporaryFolder
from collage.errors import InputError, UsageError, unknown_names
from collage.frontend.read.load import load_onnx
from collage.frontend.read.scopes import set_all
from collage.frontend.read.shapes import fixed_inputs, model_inputs
from collage.frontend.read.value_types import value_type
from collage.measure.timing.effort import FULL, QUICK
from collage.measure.worker.process import Workers
from collage.module.module import CompiledModule
from collage.runtime.inputs import in_order
from collage.schedule.suffix import ValuePort

_OPTIONS = frozenset("backends threads tune_trials db seed time_limit_s strict quick".split())

_TIME_LIMIT_S = 20.0
"""The default seconds that a candidate may take, which is compiled and run a few times."""


class PreparedModel(BackendRep):
    """A model that is compiled for each set of input shapes when these are first met."""

    def __init__(self, model: onnx.ModelProto, options: Mapping[str, Any]) -> None:
        self._model = model
        self._options = options
        self._inputs = [ValuePort(info.name, value_type(info.type)) for info in model_inputs(model)]
        self._modules: dict[tuple[Any, ...], CompiledModule] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs in the model's order, for inputs in its order or by name.

        Raises InputError, and what ``collage.compile`` raises.
        """
        given = self._by_name(inputs)
        module = self.module(given)
        return tuple(module.run(given).values())

    def module(self, inputs: Mapping[str, Any]) -> CompiledModule:
        """The module for inputs of these shapes, by name. It is compiled when there is none yet.

        Raises InputError, and what ``collage.compile`` raises.
        """
        given = self._by_name(inputs)
        shapes = tuple(map(_shape, given.values()))
        if shapes not in self._modules:
            options = CompileOptions(inputs=given, **self._options)
            self._modules[shapes] = compile_model(self._model, options, default_registry(), lambda _: None, _workers())
        return self._modules[shapes]

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        args = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        values = in_order(self._inputs, args, {}, fixed_inputs(self._model))
        return dict(zip([port.name for port in self._inputs], values, strict=True))


class CollageBackend(Backend):
    """The interface of ``onnx.backend.base.Backend``, for the CPU."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is "CPU", with or without a number."""
        return device.partition(":")[0] == "CPU"

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """The model, ready to run. ``kwargs`` are options of ``collage.compile``.

        Raises ModelError for an invalid model, and UsageError for an unknown device or option.
        """
        if not cls.supports_device(device):
            raise UsageError(f"Collage runs on the CPU, not on {device}.")
        unknown = kwargs.keys() - _OPTIONS
        if unknown:
            raise unknown_names("option", unknown, _OPTIONS)
        options = dict(kwargs)
        options.setdefault("time_limit_s", _TIME_LIMIT_S)
        options["effort"] = QUICK if options.pop("quick", True) else FULL
        options["db"] = Path(options["db"] if "db" in options else _database())
        return PreparedModel(load_onnx(model), options)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compile the model and run it once. Returns outputs in the model's order."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator, in its newest version or that of ``opset_version``, on inputs that are arrays.

        ``outputs_info`` has the dtype and shape of each output where ONNX cannot infer them. Raises InputError for a
        wrong number of inputs.
        """
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        arrays = [np.asarray(each) for each in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        if len(arrays) != len(names):
            raise InputError(f"{len(arrays)} inputs given, {node.op_type} takes {len(names)}: {names}.")
        read = [_info(name, array.dtype, array.shape) for name, array in zip(names, arrays, strict=True)]
        made = [name for name in node.output if name]
        if outputs_info is None:
            results = [onnx.ValueInfoProto(name=name) for name in made]
        else:
            results = [_info(name, *about) for name, about in zip(made, outputs_info, strict=True)]
        graph = helper.make_graph([node], node.op_type, read, results)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        if outputs_info is None:
            set_all(model.graph.output, onnx.shape_inference.infer_shapes(model).graph.output)
        return cls.run_model(model, arrays, device, **kwargs)


prepare = CollageBackend.prepare
run_model = CollageBackend.run_model
run_node = CollageBackend.run_node
supports_device = CollageBackend.supports_device
is_compatible = CollageBackend.is_compatible


def _info(name: str, dtype: Any, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _shape(value: Any) -> Any:
    """What a module is compiled for: the shape of an array, "list" for a sequence, and None for an empty optional."""
    return None if value is None else "list" if isinstance(value, (list, tuple)) else np.shape(value)


@cache
def _workers() -> Workers:
    """The measuring workers of this process. To start one takes seconds, which is long for a model of one node."""
    workers = Workers()
    atexit.register(workers.close)
    return workers


@cache
def _database() -> Path:
    """A database for this process only, since measurements of single nodes are not needed later."""
    folder = TemporaryFolder("backend")
    atexit.register(folder.remove)
    return folder.path / "measurements.sqlite"
