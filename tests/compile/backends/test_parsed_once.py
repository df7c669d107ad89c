"""Each match is parsed once, however often its backend is asked about it, and nothing of it outlives the model."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.backends.base import Backend, UnsupportedError
from collage.backends.chains import chain, conv, transposes
from collage.backends.mkl import Mkl
from collage.backends.native import Native
from collage.backends.onednn import OneDnn
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from tests.backends.product_models import product_model
from tests.models import make_model

BACKENDS = [Native(), OneDnn(), Mkl()]


def convolution() -> onnx.ModelProto:
    """A pointwise convolution, a residual and a relu: 128 to 128 channels on 20x20."""
    weights = np.random.default_rng(0).standard_normal((128, 128, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "r"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    shape = [1, 128, 20, 20]
    return make_model(nodes, {"x": shape, "r": shape}, {"y": shape}, {"w": weights})


def ask_everything(backend: Backend, model: Model, threads: int = 2) -> int:
    """Whatever a compile asks about all matches; returns how many artifacts there were."""
    options, made = BuildOptions(threads=threads), 0
    for source in backend.sources(options):
        for found in [each for each in source.find(MatchContext(model)) if not each.reason]:
            for variant in backend.variants(Subgraph(model, found.nodes), options):
                subgraph = Subgraph(model, found.nodes)
                backend.in_place(subgraph)
                backend.reassociates(subgraph, variant)
                try:
                    made += bool(backend.codegen(subgraph, replace(options, variant=variant)))
                except UnsupportedError:
                    continue
    return made


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.name)
@pytest.mark.parametrize("proto", [convolution(), product_model([64, 256], 256, then=("Gelu", "Residual"))])
def test_each_match_is_parsed_once(
    backend: Backend, proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not backend.available():
        pytest.skip(backend.available().reason)
    chains: Counter[tuple[Any, ...]] = Counter()
    convolutions: Counter[int] = Counter()
    read_part, read_conv = chain.read_part, conv.read_conv

    def counted_part(subgraph: Subgraph, root: Any, base: int, left: Any, dtypes: Any) -> Any:
        chains[(subgraph.nodes, root.id, base)] += 1
        return read_part(subgraph, root, base, left, dtypes)

    def counted_conv(graph: Any, node: Any) -> Any:
        convolutions[node.id] += 1
        return read_conv(graph, node)

    for module in (chain, transposes):
        monkeypatch.setattr(module, "read_part", counted_part)
    monkeypatch.setattr(conv, "read_conv", counted_conv)
    model = import_model(proto)
    assert ask_everything(backend, model) > 4
    assert len(chains) > 2 and set(chains.values()) == {1}
    assert set(convolutions.values()) == ({1} if model.graph.nodes[0].op == "nn.conv2d" else set())


def test_a_model_is_freed_at_once_with_all_that_was_parsed() -> None:
    model = import_model(convolution())
    for backend in BACKENDS:
        if backend.available():
            ask_everything(backend, model)
    assert model.parses
    gc.collect()  # contexts of matching are cycles
    gc.disable()  # from here on reference counts have to do: a cycle would keep the weights until a collection
    try:
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()
