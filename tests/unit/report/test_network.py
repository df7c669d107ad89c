"""A module as boxes and edges: regions, conversions, and the ONNX nodes that an engine runs."""

from __future__ import annotations

from dataclasses import replace

from collage.frontend.messages import ModelProto, NodeProto, node, tensor_info
from collage.graph.dataflow import TensorType
from collage.graph.value_type import TENSOR, ValueType
from collage.report.network import CONVERSION, ENGINE, REGION, Network, network
from collage.report.report import NodeReport
from collage.schedule.program import Port, make_program
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix, ValuePort
from tests.helpers.made_up_modules import made_up


def pairs(found: Network) -> list[tuple[str, str]]:
    """The edges, by the labels of their ends."""
    return [(found.boxes[each.start].label, found.boxes[each.end].label) for each in found.edges]


def test_regions_conversions_and_values() -> None:
    shown = made_up([f"/part/Node_{i}" for i in range(10)])
    found = network(shown.report, shown.program)
    kinds = [box.kind for box in found.boxes]
    assert (kinds[0], kinds[-1]) == ("input", "output")
    assert (kinds.count(REGION), kinds.count(CONVERSION)) == (10, 2)
    assert all(each.start < each.end for each in found.edges)
    first = found.boxes[1]
    assert (first.reads, first.writes) == (("x float32[1x64x56x56]",), ("float32[1x64x56x56]",))
    assert first.cost_us == shown.program.regions[0].cost_us
    (conversion, _) = [box for box in found.boxes if box.kind == CONVERSION]
    assert conversion.facts == (("format", "plain -> channels-last"),)


def test_blocks_stay_together() -> None:
    kind = TensorType((4,), "float32")
    names = ["/stem/a", "/cells.1/b", "/cells.0/c", "/cells.0/d", "/cells.1/e", "/cells.1/f"]
    reads = [(0,), (1,), (1,), (3,), (4, 2), (5,)]  # cells.1 begins with a node that could come before cells.0
    regions = [
        Region("b", ("op",), (at,), (name,), values, (at + 1,))
        for at, (name, values) in enumerate(zip(names, reads, strict=True))
    ]
    program = make_program(regions, [Port("x", 0, kind)], [Port("y", 6, kind)], dict.fromkeys(range(7), kind))
    report = replace(made_up(["a"]).report, nodes=[NodeReport("op", name, "Op") for name in names])
    blocks = [box.block for box in network(report, program).boxes]
    assert blocks == ["", "", "cells.0", "cells.0", "cells.1", "cells.1", "cells.1", ""]


def engine_module(nodes: list[NodeProto], names: list[NodeReport]) -> tuple[Network, Network]:
    """The network of a model that an engine runs whole, with the model at hand, and without it."""
    kind = ValueType(TENSOR, "float32", (2, 3))
    ids = tuple(range(len(names)))
    region = Region("engine", tuple(each.op for each in names), ids, tuple(each.source for each in names), (), ())
    suffix = Suffix(region, (ValuePort("x", kind),), (ValuePort("y", kind),), ("x",), ("y",))
    program = make_program([], [], [], {}).followed_by(suffix)
    model = ModelProto()
    model.graph.node.extend(nodes)
    model.graph.output.append(tensor_info("y", 1, (2, 3)))
    shown = made_up(["/a"])
    report = replace(shown.report, nodes=names, candidates=())
    return network(report, program, model.SerializeToString()), network(report, program, b"\xff")


def test_nodes_of_an_engine() -> None:
    ensemble = node("TreeEnsembleRegressor", ["a"], ["y"], "ai.onnx.ml", nodes_treeids=[0, 0, 1, 2], n_targets=1)
    nodes = [node("Relu", ["x"], ["a"], ""), ensemble]
    names = [NodeReport("onnx.Relu", "", "Relu", ("float32[2x3]",)), NodeReport("onnx.T", "", "TreeEnsembleRegressor")]
    found, without = engine_module(nodes, names)
    assert pairs(found) == [("x", "Relu"), ("Relu", "TreeEnsembleRegressor"), ("TreeEnsembleRegressor", "y")]
    _, relu, trees, _ = found.boxes
    assert (relu.kind, relu.backend, relu.nodes, relu.writes) == (ENGINE, "engine", (0,), ("a float32[2x3]",))
    assert trees.nodes == (1,)
    assert ("trees", "3") in trees.facts
    assert pairs(without) == [("x", "Relu + T"), ("Relu + T", "y")]


def test_nodes_of_an_engine_by_name_if_the_graph_was_imported() -> None:
    nodes = [node("Gelu", ["x"], ["a"], ""), node("Constant", [], ["c"], ""), node("Add", ["a", "c"], ["y"], "")]
    nodes[0].name, nodes[2].name = "gelu", "add"
    names = [NodeReport("erf", "gelu", "Gelu"), NodeReport("multiply", "gelu", "Gelu"), NodeReport("add", "add", "Add")]
    found, _ = engine_module(nodes, names)
    assert [box.nodes for box in found.boxes] == [(), (0, 1), (2,), ()]


def test_nodes_of_inner_graphs_read_outer_values() -> None:
    branch = node("If", ["x"], ["y"], "")
    attribute = branch.attribute.add(name="then_branch", type=5)
    attribute.g.node.append(node("Neg", ["a"], ["inner"], ""))
    found, _ = engine_module([node("Relu", ["x"], ["a"], ""), branch], [NodeReport("onnx.If", "", "If")])
    assert ("Relu", "If") in pairs(found)
