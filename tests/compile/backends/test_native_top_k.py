"""The largest and smallest numbers of rows by our own kernel, also beside NaN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from packaging.version import Version

import collage
from collage.backends.native_kernels.top_k import MOST, OPERATOR
from collage.core.typed import MalformedError
from collage.frontend.subgraph import Subgraph
from collage.kernel.buffers import aligned_array
from collage.kernel.options import BuildOptions
from tests.helpers.backends.native_checks import BACKEND, kernel_of, needs_native, run_variant, subgraphs_of
from tests.helpers.models import make_model

pytestmark = needs_native


def choosing(
    shape: tuple[int, ...], chosen: int, *, largest: int = 1, outputs: str = "vi", axis: int = -1
) -> onnx.ModelProto:
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"], "choice", axis=axis, largest=largest)
    sizes = {name: [*shape[:axis], chosen] if axis == -1 else [chosen, *shape[1:]] for name in outputs}
    model = make_model([node], {"x": list(shape)}, sizes, {"k": np.array([chosen], np.int64)})
    for info in model.graph.output:
        if info.name == "i":
            info.type.tensor_type.elem_type = onnx.TensorProto.INT64
    return model


def chosen_of(x: np.ndarray, count: int, largest: int) -> np.ndarray:
    """The places of the best numbers of each row, NaN being larger than all, and the first of equal ones first."""
    rows = x.reshape(-1, x.shape[-1])
    sign = -1 if largest else 1
    ranks = [[(sign * bool(np.isnan(v)), 0.0 if np.isnan(v) else sign * float(v)) for v in row] for row in rows]
    order = [sorted(range(x.shape[-1]), key=rank.__getitem__)[:count] for rank in ranks]
    return np.array(order).reshape(*x.shape[:-1], count)


def check(subgraph: Subgraph, x: np.ndarray, count: int, largest: int, outputs: str, threads: int) -> set[str]:
    """All variants are right; returns their splits."""
    places = chosen_of(x, count, largest)
    wanted = {"v": np.take_along_axis(x, places, -1), "i": places}
    splits = set()
    for variant in BACKEND.variants(subgraph, BuildOptions(threads=threads)):
        found = run_variant(subgraph, variant, threads, [x])
        for name, mine in zip(outputs, found, strict=True):
            np.testing.assert_array_equal(mine, wanted[name], err_msg=f"{variant} {name}")
        splits.add(variant.split)
    return splits


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "count"),
    [((5, 32), 4), ((1, 128), 8), ((7, 3), 3), ((2, 3, 200), MOST), ((9,), 1), ((4, 1), 1)],
)
def test_values_and_places(shape: tuple[int, ...], count: int, largest: int) -> None:
    (subgraph,) = subgraphs_of(choosing(shape, count, largest=largest))
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    for threads in (1, 2, 3):
        assert check(subgraph, x, count, largest, "vi", threads)


@pytest.mark.parametrize("outputs", ["v", "i"])
def test_one_of_them_may_be_left_out(outputs: str) -> None:
    model = choosing((6, 16), 3, outputs=outputs)
    (subgraph,) = subgraphs_of(model)
    x = np.random.default_rng(5).standard_normal((6, 16)).astype(np.float32)
    assert check(subgraph, x, 3, 1, outputs, 2) == {"rows", ""}


@pytest.mark.parametrize("largest", [0, 1])
def test_unusual_numbers(largest: int) -> None:
    """Equal ones, both zeros, and infinities."""
    x = np.zeros((3, 40), np.float32)
    x[0] = np.random.default_rng(6).integers(0, 4, 40)
    x[1, ::3] = -0.0
    x[2, [3, 9, 30]] = np.inf
    x[2, [4, 10, 31]] = -np.inf
    (subgraph,) = subgraphs_of(choosing((3, 40), 5, largest=largest))
    check(subgraph, x, 5, largest, "vi", 2)


@pytest.mark.skipif(
    Version(ort.__version__) >= Version("1.32"),
    reason="ONNX Runtime has NaN in other places from 1.32 on, so that scans guard the kernel",
)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("columns", "count"), [(6, 1), (8, 2), (40, 3), (64, 8), (256, 8), (3, 3)])
def test_nan_is_where_onnx_runtime_has_it(columns: int, count: int, largest: int) -> None:
    rng = np.random.default_rng(columns)
    x = rng.integers(0, 9, (200, columns)).astype(np.float32)
    x[rng.random(x.shape) < np.linspace(0, 1, 200)[:, None] ** 2] = np.nan
    x[rng.random(x.shape) < 0.05] = np.inf
    model = choosing(x.shape, count, largest=largest)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"x": x})
    (subgraph,) = subgraphs_of(model)
    for variant in BACKEND.variants(subgraph, BuildOptions(threads=2)):
        for mine, its in zip(run_variant(subgraph, variant, 2, [x]), wanted, strict=True):
            np.testing.assert_array_equal(mine, its)


def test_short_buffers_are_refused() -> None:
    (subgraph,) = [each for each in subgraphs_of(choosing((6, 16), 3)) if each.ops == (OPERATOR,)]
    kernel = kernel_of(subgraph, BACKEND.variants(subgraph, BuildOptions(threads=2))[0], 2)
    data, values, places = (aligned_array(each) for each in (*subgraph.input_types, *subgraph.output_types))
    kernel.bind([data], [values, places])
    for short in (
        ([data[:5]], [values, places]),
        ([data], [values[:5], places]),
        ([data], [values, places[:5]]),
    ):
        with pytest.raises(MalformedError):
            kernel.bind(*short)


def test_a_router_runs_without_an_engine(tmp_path: Path) -> None:
    """The choice of four of 32 numbers after Relu, which is exact in all kernels: near numbers keep their order."""
    nodes = [
        helper.make_node("Relu", ["x"], ["s"]),
        helper.make_node("TopK", ["s", "k"], ["v", "i"], axis=-1),
    ]
    model = make_model(nodes, {"x": [5, 32]}, {"v": [5, 4], "i": [5, 4]}, {"k": np.array([4], np.int64)})
    model.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    module = collage.compile(model, backends=["native", "tvm"], db=tmp_path / "m.sqlite", quick=True)
    x = np.random.default_rng(7).standard_normal((5, 32)).astype(np.float32)
    found = module.run({"x": x})
    places = chosen_of(x, 4, 1)
    np.testing.assert_array_equal(found["i"], places)
    np.testing.assert_array_equal(found["v"], np.take_along_axis(x, places, -1))
