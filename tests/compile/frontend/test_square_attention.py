"""Attention with as many heads as tokens: OpenVINO gets none of it, parts or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import UnsupportedError
from collage.backends.engine_faults.openvino_faults import faulty_nodes
from collage.backends.engine_faults.square_attention import square_attention
from collage.backends.openvino import OpenVino
from collage.frontend.model import import_model
from collage.frontend.rewrite.value_types import Types
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches

HEAD = 16
SCORES = ("Transpose", "k", "kt", {"perm": [0, 1, 3, 2]}), ("MatMul", "q kt", "a", {})
ATTENTION: tuple[Any, ...] = (*SCORES, ("Softmax", "a", "p", {"axis": -1}), ("MatMul", "p v", "o", {}))
PACKED: tuple[Any, ...] = (
    ("Reshape", "x packed", "r", {}),
    ("Transpose", "r", "t", {"perm": [2, 0, 3, 1, 4]}),
    *(("Gather", f"t i{i}", name, {"axis": 0}) for i, name in enumerate("qkv")),
)
BACK = ("Transpose", "o", "y", {"perm": [0, 2, 1, 3]})


def model(nodes: Sequence[Any], heads: int, tokens: int, head: int = HEAD, opset: int = 17) -> onnx.ModelProto:
    """A model whose output is the last node's; ``x`` has packed rows, and ``h`` and ``s`` have heads and rows first."""
    shapes = {
        "x": [1, tokens, 3 * heads * head],
        "h": [1, heads, tokens, head],
        "s": [1, tokens, heads, head],
    }
    constants = {
        "packed": np.array([1, tokens, 3, heads, head]),
        **{f"i{i}": np.array(i) for i in range(3)},
        "w": np.eye(head, dtype=np.float32),
        "half": np.float32(0.5),
        "rows": np.array([1, tokens, heads * head]),
    }
    made = [helper.make_node(op, i.split(), o.split(), f"{op} {o}", **attrs) for op, i, o, attrs in nodes]
    used = {name for node in made for name in node.input}
    graph = helper.make_graph(
        made,
        "test",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items() if n in used],
        [onnx.ValueInfoProto(name=made[-1].output[0])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in used],
    )
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(found, strict_mode=True, data_prop=True)


def named(made: onnx.ModelProto) -> set[str]:
    return {made.graph.node[at].name for at in square_attention(made.graph, Types.of(made.graph))}


REFUSED = {
    "packed": ([*PACKED, *ATTENTION, BACK], {"Transpose y"}),
    "the queries alone": (
        [
            ("Relu", "s", "u", {}),
            ("Transpose", "u", "g", {"perm": [0, 2, 1, 3]}),
            ("Mul", "g half", "q", {}),
            *(("Relu", "h", name, {}) for name in "kv"),
            *ATTENTION,
        ],
        {"Transpose g"},
    ),
    "two Transposes at once": (
        [
            *PACKED,
            *ATTENTION,
            ("Transpose", "o", "b", {"perm": [2, 0, 1, 3]}),
            ("Transpose", "b", "y", {"perm": [1, 0, 2, 3]}),
        ],
        {"Transpose y"},
    ),
    "Einsum": (
        [
            *PACKED,
            ("Einsum", "q k", "a", {"equation": "bhqd, bhkd -> bhqk"}),
            ("Softmax", "a", "p", {"axis": -1}),
            ("Einsum", "p v", "y", {"equation": "bhqk,bhkd->bqhd"}),
        ],
        {"Einsum y"},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_equal_extents_beside_attention(name: str) -> None:
    nodes, where = REFUSED[name]
    for heads, tokens, head in ((4, 4, HEAD), (4, 4, 4)):
        square = model(nodes, heads, tokens, head)
        assert named(square) == where
        assert set(faulty_nodes(square)) == set(square_attention(square.graph, Types.of(square.graph)))
        assert "equal extents beside attention" in str(faulty_nodes(square))
        for node in (each for each in square.graph.node if each.name in where):
            assert node.name in str(faulty_nodes(square))
    for heads, tokens, head in ((4, 5, HEAD), (4, 16, 16), (4, 5, 4), (4, 1, HEAD), (1, 4, HEAD), (1, 1, 1)):
        assert not faulty_nodes(model(nodes, heads, tokens, head))


def test_other_transposes_are_not_refused() -> None:
    turned = {"perm": [0, 2, 1, 3]}
    for nodes in (
        [("Transpose", "h", "a", turned), ("Relu", "a", "y", {})],
        [("MatMul", "h w", "a", {}), ("Transpose", "a", "y", turned)],
        [("Relu", "h", "q", {}), ("Relu", "h", "k", {}), *SCORES],
    ):
        assert named(model(nodes, 16, 16)) == set()
    projected = [("Reshape", "s rows", name, {}) for name in "qkv"]
    whole = [*projected, ("Attention", "q k v", "y", {"q_num_heads": 4, "kv_num_heads": 4})]
    assert named(model(whole, 4, 4, opset=23)) == {"Attention y"}
    assert named(model(whole, 4, 5, opset=23)) == set()


def test_openvino_is_offered_attention_without_such_transposes() -> None:
    made = model([*PACKED, *ATTENTION, BACK], 4, 4)
    with pytest.raises(UnsupportedError, match="equal extents beside attention"):
        OpenVino().codegen_model(made, BuildOptions())
    with pytest.raises(UnsupportedError, match="equal extents beside attention"):
        OpenVino().check_model(made.SerializeToString())
    context = MatchContext(import_model(made))
    matches, rejected = find_matches(context, "openvino", OpenVino().sources(BuildOptions()))
    last = max(node.id for node in context.graph.nodes)
    taken = [match.nodes for match in matches]
    assert not any(last in nodes for nodes in taken)
    assert any("equal extents beside attention" in each.reason for each in rejected)
    assert max(map(len, taken)) > 1
