"""How many instances of a kernel take turns while it is timed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage.measure.timing.cache_state
from collage.frontend.model import Model, import_model
from collage.frontend.read.proto_size import note_network
from collage.frontend.subgraph import Subgraph
from collage.measure.timing.cache_state import instance_count, weight_bytes, weights_among
from tests.helpers.backends_for_tests import onnx_model

MIB = 1 << 20


def test_instances_fill_the_cache_within_limits() -> None:
    cold, cached = 64 * MIB, 32 * MIB
    assert instance_count(MIB, 0, cached, 0.001) == 1  # it does not matter
    assert instance_count(4 * MIB, cold, cached, 0.001) == 16
    assert instance_count(MIB, cold, cached, 0.001) == 16  # at most
    assert instance_count(8 * MIB, cold, cached, 0.001) == 8
    assert instance_count(MIB, cold, cached, 2.0) == 3  # slow to load
    assert instance_count(100 * MIB, 1000 * MIB, 500 * MIB, 0.001) == 3  # 256 MiB more at most


def part_of(model: Model, network_bytes: int) -> Model:
    """The model as a part of a network with so many bytes of weights, simplified and imported anew."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.onnx)
    note_network(proto, network_bytes)
    return import_model(proto)


def test_the_networks_weights_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collage.measure.timing.cache_state, "last_level_cache", lambda: 2 * MIB)
    kind = ((8, 512), TensorProto.FLOAT)
    names = [f"w{index}" for index in range(5)]
    nodes = [
        helper.make_node("MatMul", ["x" if i == 0 else f"t{i - 1}", name], [f"t{i}"]) for i, name in enumerate(names)
    ]
    weights = {name: np.ones((512, 512), np.float32) for name in names}
    model = import_model(onnx_model(nodes, {"x": kind}, {"t4": kind}, weights))
    (first, *_, last) = (node.id for node in model.graph.nodes if "matmul" in node.op)
    one = Subgraph(model, (first,))
    assert weight_bytes(one) == MIB
    assert weights_among(one) == 4 * MIB  # 5 MiB in all: beyond the cache, which counts as twice the cache
    assert weights_among(Subgraph(part_of(model, 0), (first,))) == 4 * MIB
    monkeypatch.setattr(collage.measure.timing.cache_state, "last_level_cache", lambda: 32 * MIB)
    assert weights_among(one) == 8 * MIB  # in the cache
    assert weights_among(Subgraph(part_of(model, 500 * MIB), (first,))) == 64 * MIB  # a part of a larger network
    monkeypatch.setattr(collage.measure.timing.cache_state, "last_level_cache", lambda: 2 * MIB)
    whole = Subgraph(model, tuple(range(first, last + 1)))
    assert weights_among(whole) == 0  # never in the cache
