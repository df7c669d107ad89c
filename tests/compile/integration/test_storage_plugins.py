"""Plug-ins with storages of their own: a format, and a made-up device whose memory is really the host's."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage.backends.base import Backend
from collage.backends.layout import LayoutTransforms
from collage.backends.view import View
from collage.compiler.compile import CompileOptions, compile_model
from collage.errors import ModuleFileError
from collage.graph.formats import StorageFormat
from collage.graph.storage import PLAIN
from collage.kernel.options import Variant
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.process import Workers
from tests.helpers.backends_for_tests import onnx_model
from tests.helpers.storage_formats import COLUMNS, DEVICE

ROWS, WIDTH = 5, 16


@pytest.fixture(scope="module", autouse=True)
def workers() -> Iterator[None]:
    """One for all compiles: most of a start is importing TVM."""
    with Workers() as kept:
        _workers.append(kept)
        yield


_workers: list[Workers] = []


def network() -> onnx.ModelProto:
    """x → relu → matmul → tanh, plus the relu's result → y."""
    kind = ((ROWS, WIDTH), TensorProto.FLOAT)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("Add", ["c", "a"], ["y"]),
    ]
    weight = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4
    return onnx_model(nodes, {"x": kind}, {"y": kind}, {"w": weight})


_PLAIN_OPS: dict[str, Callable[..., Any]] = {
    "nn.relu": lambda x: np.maximum(x, 0),
    "matmul": np.matmul,
    "tanh": np.tanh,
    "add": np.add,
}
_COLUMN_OPS = {**_PLAIN_OPS, "matmul": lambda x, w: w.T @ x}
"""On matrices that lie column by column, padded with zeros, which stay zeros."""


class NumpyKernel(collage.Kernel):
    def __init__(self, compute: Callable[..., Any], weights: Sequence[Any]) -> None:
        self.compute, self.weights = compute, weights

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        def run() -> None:
            outputs[0][...] = self.compute(*inputs, *self.weights)

        return run


class Rule(collage.BasePatternRule):
    def __init__(self, ops: Sequence[str]) -> None:
        self.ops = ops

    def op_rule(self, op: Any) -> bool | str:
        return op.name in self.ops or f"no kernel for {op.name}"


class Host(collage.Backend):
    """Runs single operators in numpy; those that derive from it do in storages of their own."""

    name = "host"
    kind = collage.BackendKind.LIBRARY
    storage = PLAIN
    compute = _PLAIN_OPS
    ops: Sequence[str] = ("relu", "matmul", "tanh", "add")

    def available(self) -> collage.Availability:
        return collage.Availability(version="1")

    def sources(self, options: collage.BuildOptions) -> Sequence[Any]:
        return (Rule(self.ops),)

    def variants(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> Sequence[Variant]:
        return (Variant((self.storage,) * len(subgraph.inputs), (self.storage,) * len(subgraph.outputs)),)

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        return pickle.dumps((subgraph.operators[0].op, list(subgraph.weights.values())))

    def load(self, artifact: bytes, options: collage.BuildOptions) -> collage.Kernel:
        op, weights = pickle.loads(artifact)
        return NumpyKernel(self.compute[op], weights)


class Columnar(Host):
    """Takes and gives matrices column by column; nothing but the format is needed for that."""

    name = "columnar"
    storage = COLUMNS
    compute = _COLUMN_OPS

    def formats(self) -> Sequence[StorageFormat]:
        return (COLUMNS.format,)


class Npu(Host):
    """Multiplies matrices in the memory of a device, and copies there and back."""

    name = "npu"
    storage = DEVICE
    ops = ("matmul",)
    copy: Callable[[Any], Any] = staticmethod(np.copy)

    def transforms(self, transform: LayoutTransform) -> bool:
        return {transform.source, transform.target} == {PLAIN, DEVICE}

    def codegen_transform(self, transform: LayoutTransform, options: collage.BuildOptions) -> bytes:
        return str(transform).encode()

    def load_transform(self, artifact: Any, options: collage.BuildOptions) -> collage.Kernel:
        assert b"npu:plain" in bytes(artifact)
        return NumpyKernel(self.copy, ())


class LosesSigns(Npu):
    """Its copies are wrong."""

    name = "loses_signs"
    copy = staticmethod(np.abs)


class NotMultiplying(Host):
    """Leaves the product to others."""

    name = "not_multiplying"
    ops = ("relu", "tanh", "add")


def registry_of(*backends: Backend) -> collage.Registry:
    registry = collage.Registry()
    for backend in (View(), LayoutTransforms(), *backends):
        registry.register(backend)
    return registry


def compiled(database: Path, registry: collage.Registry, device: str = "auto") -> collage.CompiledModule:
    options = CompileOptions(db=database, threads=1, device=device)
    return compile_model(network(), options, registry, lambda _: None, _workers[-1])


def check_answers(module: Any) -> None:
    session = ort.InferenceSession(network().SerializeToString(), providers=["CPUExecutionProvider"])
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(module(x), expected, rtol=1e-5, atol=1e-6)


def test_a_format_of_a_plug_in(tmp_path: Path) -> None:
    """Its transforms are made by the functions of the format, and all else goes on as with any other format."""
    registry = registry_of(Columnar())
    module = compiled(tmp_path / "db.sqlite", registry)
    check_answers(module)
    assert [(each.backend, each.layout) for each in module.program.launches] == [
        ("columnar", "plain -> column-major"),
        *[("columnar", "column-major")] * 4,
        ("columnar", "column-major -> plain"),
    ]
    assert [each.is_transform for each in module.program.launches] == [True, *[False] * 4, True]
    again = compiled(tmp_path / "db.sqlite", registry)
    assert again.report.measurements_made == 0
    module.save(tmp_path / "m.collage")
    check_answers(collage.load(tmp_path / "m.collage", registry=registry))
    with pytest.raises(ModuleFileError, match=r"needs .?columnar.? 1 \(here: not registered\)"):
        collage.load(tmp_path / "m.collage", registry=registry_of())


def test_a_device_of_a_plug_in(tmp_path: Path) -> None:
    registry = registry_of(NotMultiplying(), Npu())
    module = compiled(tmp_path / "db.sqlite", registry)
    check_answers(module)
    assert [(each.backend, each.layout) for each in module.program.launches] == [
        ("not_multiplying", "plain"),
        ("npu", "plain -> npu:plain"),
        ("npu", "npu:plain"),
        ("npu", "npu:plain -> plain"),
        ("not_multiplying", "plain"),
        ("not_multiplying", "plain"),
    ]
    assert {name: len(plan.offsets) for name, plan in module.program.arenas.items()} == {"cpu": 5, "npu": 2}
    module.save(tmp_path / "m.collage")
    loaded: Any = collage.load(tmp_path / "m.collage", registry=registry)
    assert loaded.program.arenas == module.program.arenas
    check_answers(loaded)


def test_copies_that_are_wrong_are_rejected(tmp_path: Path) -> None:
    module = compiled(tmp_path / "db.sqlite", registry_of(Host(), LosesSigns()))
    check_answers(module)
    assert {each.backend for each in module.program.launches} == {"host"}
