"""ONNX models of PyTorch's modules and programs, with what an example says about their inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import onnx

from collage.errors import UsageError
from collage.frontend.pytorch.torch_export import exported, to_onnx, without_notes
from collage.frontend.read.shapes import model_inputs
from collage.graph.dataflow import Array
from collage.graph.given_array import MismatchError, given_array
from collage.graph.torch_tensors import array_over, is_tensor, tensor_of


@dataclass(frozen=True)
class FromTorch:
    """The ONNX model of an object of PyTorch."""

    model: onnx.ModelProto
    name: str
    inputs: Mapping[str, Array]
    """Values to measure with, by name: those of the example that made-up ones may not stand for."""
    shapes: Mapping[str, tuple[int, ...]]
    """The example's shapes of inputs whose shapes the model leaves open."""


def from_torch(obj: Any, example: Any = None) -> FromTorch | None:
    """The ONNX model of a ``torch.nn.Module``, ``torch.export.ExportedProgram`` or ``torch.onnx.ONNXProgram``.

    ``example`` is a tensor or an array, a tuple of arguments, or a mapping of keyword arguments; programs need none. A
    module is exported in eval mode, and keeps its own. None for any other object, of which PyTorch is not imported.
    Raises UsageError for an example that does not do, and ModelError for what cannot be exported.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return None
    if isinstance(obj, torch.nn.Module):
        return _of_module(obj, example)
    export, to = sys.modules.get("torch.export"), sys.modules.get("torch.onnx")
    if isinstance(obj, getattr(export, "ExportedProgram", ())):
        return _of_program(obj, example)
    if isinstance(obj, getattr(to, "ONNXProgram", ())):
        return _of_onnx_program(obj, example)
    return None


def _of_module(module: Any, example: Any) -> FromTorch:
    module = getattr(module, "_orig_mod", module)  # what torch.compile has made of a module
    name = type(module).__name__
    if hasattr(module, "_c"):  # a ScriptModule, which PyTorch's exporter does not take
        raise UsageError(f"a {name} is TorchScript, which cannot be exported: give the module that it was made from.")
    if example is None:
        raise UsageError(
            f"a {name} is a module of PyTorch, whose ONNX model depends on its inputs: give an example of them, such "
            "as collage.compile(model, torch.randn(1, 3, 224, 224))."
        )
    args, kwargs = _arguments(example)
    order = [*signature(module.forward).parameters]
    kwargs = {each: kwargs[each] for each in sorted(kwargs, key=lambda each: (*order, each).index(each))}
    with _evaluating(module):
        program = exported(module, args, kwargs, f"the {name}")
    names = _input_names(program)
    model = to_onnx(program, names, _output_names(program, names), f"the {name}")
    return _described(model, name, dict(zip(names, _tensors([args, [*kwargs.values()]]), strict=True)))


def _of_program(program: Any, example: Any) -> FromTorch:
    name = type(program).__name__
    names = _input_names(program)
    model = to_onnx(program, names, _output_names(program, names), f"the {name}")
    return _described(model, name, _by_name(names, example, name))


def _of_onnx_program(program: Any, example: Any) -> FromTorch:
    name = type(program).__name__
    model: onnx.ModelProto = without_notes(program.model_proto)
    return _described(model, name, _by_name([each.name for each in model_inputs(model)], example, name))


def _by_name(names: Sequence[str], example: Any, what: str) -> dict[str, Any]:
    """The tensors of a program's example by the names of its inputs. Raises UsageError."""
    args, kwargs = ((), {}) if example is None else _arguments(example)
    tensors = _tensors(args)
    if len(tensors) > len(names) or not {*kwargs} <= {*names} or not all(map(is_tensor, kwargs.values())):
        raise UsageError(f"the example does not fit the {what}, which takes tensors: {', '.join(names)}.")
    return {**dict(zip(names, tensors, strict=False)), **kwargs}


def _described(model: onnx.ModelProto, name: str, tensors: Mapping[str, Any]) -> FromTorch:
    arrays = {each: array_over(tensor.detach()) for each, tensor in tensors.items()}
    open_ones = {
        each.name
        for each in model_inputs(model)
        if any(not dim.HasField("dim_value") for dim in each.type.tensor_type.shape.dim)
    }
    return FromTorch(
        model,
        name,
        values_that_count(arrays),
        {each: array.shape for each, array in arrays.items() if each in open_ones},
    )


def values_that_count(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Those that made-up numbers may not stand for: integers may be indices, and floats a mask.

    Floats that are all equal are a place holder, such as zeros, on which wrong kernels would be right.
    """
    return {
        name: array
        for name, array in arrays.items()
        if array.dtype.kind in "biu" or (array.size and bool(np.any(array != array.flat[0])))
    }


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments, with tensors for arrays. Raises UsageError."""
    if isinstance(example, Mapping):
        if not all(isinstance(name, str) for name in example):
            raise UsageError("an example that is a mapping has the names of the model's arguments as keys.")
        return (), {name: _as_argument(each) for name, each in example.items()}
    return tuple(map(_as_argument, example if isinstance(example, tuple) else (example,))), {}


def _as_argument(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_as_argument, value)) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {name: _as_argument(each) for name, each in value.items()}
    if is_tensor(value):
        if value.device.type != "cpu":
            raise UsageError(f"a tensor of the example is on {value.device}: move it and the model to the CPU.")
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            return tensor_of(np.array(given_array(np.asarray(value), np.asarray(value).dtype)))
        except (MismatchError, TypeError) as error:
            raise UsageError(f"an array of the example is no tensor: {error}.") from error
    return value


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Within it the module and all in it are in eval mode."""
    before = [(each, each.training) for each in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for each, training in before:
            each.training = training


def _tensors(values: Any) -> list[Any]:
    """The tensors in nested values, in order."""
    from torch.utils import _pytree

    return [each for each in _pytree.tree_leaves(values) if is_tensor(each)]


def _input_names(program: Any) -> list[str]:
    """The names of the tensors that the program takes, as the module's ``forward`` has them."""
    from torch.export.graph_signature import InputKind, TensorArgument

    return [
        each.arg.name
        for each in program.graph_signature.input_specs
        if each.kind == InputKind.USER_INPUT and isinstance(each.arg, TensorArgument)
    ]


def _output_names(program: Any, taken: Sequence[str]) -> list[str]:
    """Names of the tensors that the program returns, by the keys of mappings and dataclasses, and positions."""
    from torch.export.graph_signature import OutputKind, TensorArgument
    from torch.utils import _pytree

    specs = [each for each in program.graph_signature.output_specs if each.kind == OutputKind.USER_OUTPUT]
    tree = program.call_spec.out_spec
    paths, _ = _pytree.tree_flatten_with_path(_pytree.tree_unflatten(range(tree.num_leaves), tree))
    found: list[str] = []
    for spec, (path, _) in zip(specs, paths, strict=True):
        if isinstance(spec.arg, TensorArgument):
            keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
            named = bool(path) and not hasattr(path[0], "idx")
            name = "_".join(keys if named else ["output", *keys])
            found.append(_free(name, {*taken, *found}))
    return found


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number behind it if it is taken."""
    number = 2
    found = name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found
