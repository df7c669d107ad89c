"""Collage behind ONNX's backend interface, so that what runs models through it can use Collage, too.

    import collage.onnx_backend as backend

    outputs = backend.run_model(model, [x])          # one list of inputs, in the model's order
    prepared = backend.prepare(model, threads=1)     # or with collage.compile's options
    outputs = prepared.run([x])

A model is compiled on the first run with inputs of a shape, and measured and checked with these: an input may be a
shape or an index, which made-up numbers would not be. Little time is spent on measuring (``quick``), unless told
otherwise, and what is measured is forgotten when this process ends, unless ``db`` names a file.
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
from collage.compiler.options import CompileOptions
from collage.core.temporary import TemporaryFolder
from collage.errors import InputError, UsageError, unknown_names
from collage.frontend.load import load_onnx
from collage.frontend.shapes import model_inputs
from collage.measure_db.effort import FULL, QUICK
from collage.measure_db.process import Workers
from collage.module.module import CompiledModule

_OPTIONS = frozenset("backends threads tune_trials db seed time_limit_s strict quick".split())

_TIME_LIMIT_S = 20.0
"""For a candidate that is compiled and run a few times, unless told otherwise."""


class PreparedModel(BackendRep):
    """A model that is compiled for each set of input shapes when it meets it."""

    def __init__(self, model: onnx.ModelProto, options: Mapping[str, Any]) -> None:
        self._model = model
        self._options = options
        self._names = [info.name for info in model_inputs(model)]
        self._modules: dict[tuple[Any, ...], CompiledModule] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs in the model's order, for inputs in its order or by name. Raises what ``collage.compile`` does."""
        given = self._by_name(inputs)
        module = self.module(given)
        return tuple(module.run(given).values())

    def module(self, inputs: Mapping[str, Any]) -> CompiledModule:
        """The module for inputs of these shapes, by name; compiled when there is none yet."""
        shapes = tuple(_shape(inputs[name]) for name in self._names)
        if shapes not in self._modules:
            options = CompileOptions(inputs=inputs, **self._options)
            self._modules[shapes] = compile_model(
                self._model, options, default_registry(), lambda _: None, _workers()
            )
        return self._modules[shapes]

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(values) != len(self._names):
            raise InputError(
                f"{len(values)} inputs given, the model takes {len(self._names)}: {self._names}."
            )
        return dict(zip(self._names, values, strict=True))


class CollageBackend(Backend):
    """The interface of ``onnx.backend.base.Backend``, for the CPU."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Only "CPU", with or without a number."""
        return device.partition(":")[0] == "CPU"

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """The model, ready to run. ``kwargs`` are options of ``collage.compile``.

        Raises ModelError when it is no valid model, UsageError for a device or an option that there is not.
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
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Outputs of the model, which is compiled first."""
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
        """Outputs of one operator, in its newest version or that of ``opset_version``; inputs are arrays.

        ``outputs_info`` gives the dtype and shape of each output where ONNX cannot infer them.
        """
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        arrays = [np.asarray(each) for each in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        if len(arrays) != len(names):
            raise InputError(f"{len(arrays)} inputs given, {node.op_type} takes {len(names)}: {names}.")
        taken = [_info(name, array.dtype, array.shape) for name, array in zip(names, arrays, strict=True)]
        given = [name for name in node.output if name]
        if outputs_info is None:
            results = [onnx.ValueInfoProto(name=name) for name in given]
        else:
            results = [_info(name, *about) for name, about in zip(given, outputs_info, strict=True)]
        graph = helper.make_graph([node], node.op_type, taken, results)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        if outputs_info is None:
            inferred = onnx.shape_inference.infer_shapes(model).graph.output
            del model.graph.output[:]
            model.graph.output.extend(inferred)
        return cls.run_model(model, arrays, device, **kwargs)


prepare = CollageBackend.prepare
run_model = CollageBackend.run_model
run_node = CollageBackend.run_node
supports_device = CollageBackend.supports_device
is_compatible = CollageBackend.is_compatible


def _info(name: str, dtype: Any, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _shape(value: Any) -> Any:
    """What a module is compiled for: an array's shape; of sequences and optionals that they are such."""
    return None if value is None else "list" if isinstance(value, (list, tuple)) else np.shape(value)


@cache
def _workers() -> Workers:
    """The measuring workers of this process: starting one takes seconds, a one-node model a fraction of one."""
    workers = Workers()
    atexit.register(workers.close)
    return workers


@cache
def _database() -> Path:
    """One for this process: measurements of single nodes are of no use to anybody later."""
    folder = TemporaryFolder("backend")
    atexit.register(folder.remove)
    return folder.path / "measurements.sqlite"
