"""What the search offloads to a made-up device, with made-up costs of kernels and copies: exactly what pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
from collage.backends.layout import maker_of
from collage.backends.view import View
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph
from collage.graph.storage import PLAIN
from collage.kernel.kernel import Kernel
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.kernel.transform import LayoutTransform
from collage.measure_db.results import Measurement
from collage.patterns.match import Match
from collage.search.candidate import Candidate
from collage.search.candidates import candidates_of, offers_of, possible_transforms
from collage.search.dp import place
from collage.search.placement import Placement
from collage.search.transforms import ValueTransform
from tests.helpers.backends_for_tests import onnx_model
from tests.helpers.search.exact import place_exact
from tests.helpers.storage_formats import DEVICE
from tests.helpers.strategies import graphs


@dataclass(frozen=True)
class Offload:
    """A graph, what each node costs on each machine, and what it costs to copy each value there and back."""

    graph: Graph
    kernels_us: tuple[tuple[float, float], ...]
    copies_us: tuple[tuple[float, float], ...]

    @property
    def candidates(self) -> list[Candidate]:
        """Each node on the host, where everything is plain, and on the device, which has everything in its memory."""
        graph, found = self.graph, []
        for node in graph.nodes:
            host_us, device_us = self.kernels_us[node.id]
            reads = tuple((v, DEVICE) for v in sorted({*node.inputs}) if not graph.is_constant(v))
            writes = tuple((v, DEVICE) for v in node.outputs if v in graph.output_set or graph.users[v])
            found.append(Candidate((node.id,), "host", host_us))
            found.append(Candidate((node.id,), "npu", device_us, reads=reads, writes=writes))
        return found

    @property
    def transforms_us(self) -> dict[ValueTransform, float]:
        found: dict[ValueTransform, float] = {}
        for value, (there, back) in enumerate(self.copies_us):
            kind = self.graph.type_of(value)
            found[value, LayoutTransform(kind, PLAIN, DEVICE)] = there
            found[value, LayoutTransform(kind, DEVICE, PLAIN)] = back
        return found

    def cost_us(self, offloaded: Sequence[bool]) -> float:
        """What it costs with these nodes on the device, told without any of Collage's search."""
        graph = self.graph
        total = sum(costs[on] for costs, on in zip(self.kernels_us, offloaded, strict=True))
        for value in (each for each in graph.values if not graph.is_constant(each.id)):
            made = value.producer is not None and offloaded[value.producer]
            needed = {offloaded[user] for user in graph.users[value.id]}
            if value.id in graph.output_set:
                needed.add(False)
            if not made and True in needed:
                total += self.copies_us[value.id][0]
            if made and False in needed:
                total += self.copies_us[value.id][1]
        return total


@st.composite
def offloads(draw: st.DrawFn) -> Offload:
    graph = draw(graphs(max_nodes=7))
    quarters = st.integers(0, 32).map(lambda n: n / 4)
    dear = draw(st.sampled_from([0.25, 1.0, 4.0]))
    kernels = [(draw(quarters), draw(quarters)) for _ in graph.nodes]
    copies = [(dear * draw(quarters), dear * draw(quarters)) for _ in graph.values]
    return Offload(graph, tuple(kernels), tuple(copies))


def on_device(placement: Placement, count: int) -> list[bool]:
    chosen = {node for c in placement.candidates if c.backend == "npu" for node in c.nodes}
    return [node in chosen for node in range(count)]


@settings(max_examples=200, deadline=None)
@given(offloads())
def test_offloads_exactly_what_pays(case: Offload) -> None:
    count = len(case.graph.nodes)
    every = {choice: case.cost_us(choice) for choice in product([False, True], repeat=count)}
    placement = place(case.graph, case.candidates, 0.0, transforms_us=case.transforms_us)
    chosen = on_device(placement, count)
    event(f"offloaded: {sum(chosen)} of {count}")
    assert placement.exact
    assert placement.predicted_us == pytest.approx(min(every.values()))
    assert every[tuple(chosen)] == pytest.approx(min(every.values()))
    stays = every[(False,) * count]
    gains = min(us for choice, us in every.items() if any(choice)) - stays
    if abs(gains) > 1e-9:
        assert any(chosen) == (gains < 0)


@settings(max_examples=40, deadline=None)
@given(offloads())
def test_offloading_equals_the_exact_solver(case: Offload) -> None:
    found = place(case.graph, case.candidates, 0.5, transforms_us=case.transforms_us)
    expected = place_exact(case.graph, case.candidates, 0.5, transforms_us=case.transforms_us)
    assert found.predicted_us == pytest.approx(expected.predicted_us)


class Null(Backend):
    """Runs nothing, and says what it would cost."""

    kind = BackendKind.LIBRARY

    def available(self) -> Availability:
        return Availability(version="1")

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return ()

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        raise UnsupportedError("it runs nothing")

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        raise UnsupportedError("it runs nothing")


class NullHost(Null):
    name = "null_host"


class NullDevice(Null):
    name = "null_device"

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        return (Variant((DEVICE,) * len(subgraph.inputs), (DEVICE,) * len(subgraph.outputs)),)

    def transforms(self, transform: LayoutTransform) -> bool:
        return {transform.source, transform.target} == {PLAIN, DEVICE}


def network() -> Model:
    """x → relu → reshape → matmul → reshape → tanh → y: the product is what a device would be good at."""
    wide, flat = ((4, 2, 8), TensorProto.FLOAT), ((8, 8), TensorProto.FLOAT)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "flat"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Reshape", ["c", "wide"], ["d"]),
        helper.make_node("Tanh", ["d"], ["y"]),
    ]
    weights = {
        "w": np.eye(8, dtype=np.float32),
        "flat": np.array(flat[0], np.int64),
        "wide": np.array(wide[0], np.int64),
    }
    return import_model(onnx_model(nodes, {"x": wide}, {"y": wide}, weights))


@pytest.mark.parametrize(("copy_us", "offloads"), [(1.0, True), (45.0, True), (46.0, False)])
def test_from_offers_to_a_placement(copy_us: float, offloads: bool) -> None:
    """A backend offers kernels in a storage of its own; what is between them stays on the device, views included."""
    model = network()
    graph = model.graph
    backends: dict[str, Backend] = {each.name: each for each in (NullHost(), NullDevice(), View())}
    renames = [node for node in graph.nodes if node.op == "reshape"]
    works = [node for node in graph.nodes if node.op != "reshape"]
    matches = [Match((node.id,), name, "op") for node in works for name in ("null_host", "null_device")]
    views = [Match((node.id,), "view", "view") for node in renames]
    offers, refused = offers_of(model, matches, backends, BuildOptions())
    costs = {("null_host", "matmul"): 100.0, ("null_device", "matmul"): 10.0}
    costs |= {("null_host", "nn.relu"): 5.0, ("null_device", "nn.relu"): 9.0}
    costs |= {("null_host", "tanh"): 5.0, ("null_device", "tanh"): 4.0}
    outcomes = {
        each.request: Measurement(costs[each.request.backend, graph.nodes[each.request.nodes[0]].op], 0.0, 0.0, 1, 0.0)
        for each in offers
    }
    assert not refused
    candidates = candidates_of(model, offers, views, outcomes, {"null_host", "null_device"})
    transforms_us = {}
    for value, transform in possible_transforms(model, candidates):
        maker = maker_of(transform, backends)
        assert maker is not None
        assert maker.name == "null_device"
        transforms_us[value, transform] = copy_us
    placement = place(graph, candidates, 0.0, transforms_us=transforms_us)
    assert placement.exact
    there = [c for c in placement.candidates if c.variant != ALL_PLAIN and DEVICE in c.variant.outputs]
    product, second, last = (graph.nodes[node] for node in range(2, 5))
    assert [product.op, second.op, last.op] == ["matmul", "reshape", "tanh"]
    nodes = {c.nodes[0] for c in there}
    assert nodes - {1} == ({2, 3, 4} if offloads else set())  # the first reshape is free on either side
    assert placement.predicted_us == (19.0 + 2 * copy_us if offloads else 110.0)
    assert len(placement.transforms) == (2 if offloads else 0)
    assert placement.predicted_us == place_exact(graph, candidates, 0.0, transforms_us=transforms_us).predicted_us


LAUNCH_US, COPY_US = 4.0, 9.0
"""What a launch on a device like a GPU costs at least, and a copy to it or back."""


def like_a_gpu(rows: int, width: int) -> Offload:
    """Three layers of a perceptron on ``rows`` rows, where a device computes 100 times as fast as the host.

    The host takes 3 us for a million multiplications, and each million bytes take 50 us to be copied. There are no
    kernels for the device for the sums that stand in the middle.
    """
    kind = ((rows, width), TensorProto.FLOAT)
    nodes = [
        *(helper.make_node("MatMul", [x, w], [y]) for x, w, y in (("x", "u", "a"), ("b", "v", "c"), ("d", "w", "e"))),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("CumSum", ["c", "axis"], ["d"]),
        helper.make_node("Relu", ["e"], ["y"]),
    ]
    nodes = [nodes[number] for number in (0, 3, 1, 4, 2, 5)]
    weights: dict[str, Any] = {name: np.zeros((width, width), np.float32) for name in "uvw"}
    graph = import_model(onnx_model(nodes, {"x": kind}, {"y": kind}, {**weights, "axis": np.array(1)})).graph
    size = rows * width
    work = {"matmul": size * width, "nn.relu": size, "cumsum": 4 * size}
    host = [3e-6 * work[node.op] for node in graph.nodes]
    device = [1e9 if node.op == "cumsum" else LAUNCH_US + us / 100 for node, us in zip(graph.nodes, host, strict=True)]
    copy_us = COPY_US + 50e-6 * 4 * size
    return Offload(graph, tuple(zip(host, device, strict=True)), ((copy_us, copy_us),) * len(graph.values))


@pytest.mark.parametrize(
    ("rows", "width", "expected"),
    [(1, 16, []), (64, 64, []), (64, 1024, ["matmul", "nn.relu"]), (2048, 256, ["matmul", "nn.relu"])],
)
def test_small_models_stay_and_large_ones_go(rows: int, width: int, expected: list[str]) -> None:
    """A small one stays on the host, and a large one goes, but for what only the host has a kernel for."""
    case = like_a_gpu(rows, width)
    count = len(case.graph.nodes)
    every = {choice: case.cost_us(choice) for choice in product([False, True], repeat=count)}
    placement = place(case.graph, case.candidates, 0.0, transforms_us=case.transforms_us)
    chosen = on_device(placement, count)
    assert {node.op for node, there in zip(case.graph.nodes, chosen, strict=True) if there} == {*expected}
    assert every[tuple(chosen)] == pytest.approx(min(every.values()))
    assert placement.predicted_us == pytest.approx(min(every.values()))
    assert len(placement.transforms) == (4 if expected else 0)  # there and back, before and after the sums
