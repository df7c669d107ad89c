"""Graphs and candidates for tests: a builder without TVM, random DAGs, and a large NASNet-like case."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from collage.graph.convexity import Reachability
from collage.graph.dataflow import Graph, Node, OpKind, TensorType, Value
from collage.graph.order import branch_order, cut_positions, windows
from collage.search.candidate import Candidate

TENSOR = TensorType((1, 8), "float32")


class GraphBuilder:
    """Builds a Graph node by node; values are ids, all of one type."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._values: list[Value] = []
        self._inputs: list[int] = []

    def input(self) -> int:
        self._inputs.append(self._value(None))
        return self._inputs[-1]

    def node(self, *inputs: int, op: str = "nn.relu") -> int:
        return self.multi(*inputs, op=op, outputs=1)[0]

    def multi(self, *inputs: int, op: str = "split", outputs: int) -> tuple[int, ...]:
        made = tuple(self._value(len(self._nodes)) for _ in range(outputs))
        self._nodes.append(Node(len(self._nodes), op, inputs, made, kind=OpKind.ELEMWISE))
        return made

    def finish(self, *outputs: int) -> Graph:
        return Graph(tuple(self._nodes), tuple(self._values), tuple(self._inputs), outputs)

    def _value(self, producer: int | None) -> int:
        self._values.append(Value(len(self._values), TENSOR, producer))
        return len(self._values) - 1


def graph_of(edges: Iterable[tuple[int, int]], count: int, outputs: Sequence[int] | None = None) -> Graph:
    """A graph of single-output nodes with these edges; returns the nodes ``outputs``, or all without users.

    Value ``i`` is the output of node ``i - 1``; value 0 is the input, which nodes without edges read.
    """
    edges = list(edges)
    build = GraphBuilder()
    build.input()
    for node in range(count):
        build.node(*([a + 1 for a, b in edges if b == node] or [0]))
    if outputs is None:
        outputs = sorted(set(range(count)) - {a for a, _ in edges})
    return build.finish(*(node + 1 for node in outputs))


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 9) -> Graph:
    """Random DAGs: branches, nodes with two outputs, dead nodes, values both used and returned."""
    build = GraphBuilder()
    values = [build.input()]
    made: list[int] = []
    for _ in range(draw(st.integers(1, max_nodes))):
        # Reading from the latest values mostly makes graphs long enough to have something to search.
        near = st.sampled_from(values[-4:])
        inputs = draw(st.lists(near | st.sampled_from(values), min_size=1, max_size=3))
        new = build.multi(*inputs, op="nn.relu", outputs=draw(st.sampled_from([1, 1, 1, 2])))
        values += new
        made += new
    middle = draw(st.lists(st.sampled_from(made), max_size=2, unique=True))
    return build.finish(*dict.fromkeys([*middle, made[-1]]))


@st.composite
def problems(draw: st.DrawFn, max_nodes: int = 8) -> tuple[Graph, list[Candidate]]:
    """A graph with overlapping candidates: chains, convex sets with many sinks, some that are not convex.

    Mostly each node has a candidate of its own; sometimes not, and then there may be no placement.
    """
    graph = draw(graphs(max_nodes))
    ids = st.integers(0, len(graph.nodes) - 1)
    cost = st.integers(0, 40).map(lambda quarters: quarters / 4)
    noise = st.integers(0, 4).map(lambda quarters: quarters / 4)
    backend = st.sampled_from(["a", "b", "c"])
    found: list[Candidate] = []
    all_single = draw(st.sampled_from([True, True, True, False]))
    for node in range(len(graph.nodes)):
        if all_single or draw(st.booleans()):
            found.append(Candidate((node,), draw(backend), draw(cost), draw(noise)))
    for _ in range(draw(st.integers(0, 14))):
        nodes: Sequence[int] = sorted(draw(st.sets(ids, min_size=1, max_size=4)))
        if draw(st.sampled_from([True, True, True, False])):
            reach = Reachability.of(graph)
            nodes = reach.members(reach.closure(nodes))
        found.append(Candidate(tuple(nodes), draw(backend), draw(cost), draw(noise)))
    return graph, found


def nasnet_like(
    cells: int = 18, length: int = 6, seed: int = 0, *, horizontal: bool = False
) -> tuple[Graph, list[Candidate]]:
    """A graph in the manner of NASNet, with the candidates of operator libraries and of two engines.

    A cell has ten branches of ``length`` nodes, which read one of the two cells before it, five additions of
    two branches each and a concatenation: 66 nodes as given, 1,188 in all. Candidates are chains of up to 8
    nodes, both ends of two branches with their addition, the dyadic windows for two engines, and with
    ``horizontal`` cheap pairs of nodes of two branches (several sinks: many of them form circles).
    """
    rng = random.Random(seed)
    build = GraphBuilder()
    before = last = build.input()
    node_of: dict[int, int] = {}

    def node(*inputs: int, op: str) -> int:
        value = build.node(*inputs, op=op)
        node_of[value] = len(node_of)
        return value

    joins: list[tuple[list[int], list[int], int]] = []
    for _ in range(cells):
        sums = []
        for pair in range(5):
            branches: list[list[int]] = []
            for side in range(2):
                value = last if (pair + side) % 2 else before
                branch: list[int] = []
                for step in range(length):
                    value = node(value, op=("nn.relu", "nn.conv2d", "nn.bias_add")[step % 3])
                    branch.append(node_of[value])
                branches.append(branch)
            first, second = (build._nodes[branch[-1]].outputs[0] for branch in branches)
            sums.append(node(first, second, op="add"))
            joins.append((branches[0], branches[1], node_of[sums[-1]]))
        before, last = last, node(*sums, op="concat")
    graph = build.finish(last)

    sets: dict[tuple[int, ...], None] = {}
    for start in range(len(graph.nodes)):
        chain = [start]
        while len(chain) < 8 and len(graph.successors[chain[-1]]) == 1:
            sets[tuple(chain)] = None
            chain.append(graph.successors[chain[-1]][0])
        sets[tuple(chain)] = None
    for one, two, join in joins:
        for a in range(1, 7):
            for b in range(1, 7):
                sets[tuple(sorted((*one[-a:], *two[-b:], join)))] = None
    if horizontal:
        for one, two, _ in joins:
            for a, b in rng.sample([(a, b) for a in one for b in two], 6):
                sets[min(a, b), max(a, b)] = None

    def cost(nodes: Sequence[int], gain: float = 0.5) -> float:
        work = sum(5 + 20 * (node % 7) / 7 for node in nodes)
        return work * (1 - gain + gain / min(len(nodes), 8)) * rng.uniform(0.9, 1.3)

    found = [
        Candidate(nodes, backend, cost(nodes), 0.5)
        for nodes in sets
        for backend in (("tvm", "dnnl") if len(nodes) < 4 else ("tvm",))
    ]
    order = branch_order(graph)
    found += [
        Candidate(nodes, engine, cost(nodes, gain=0.42), 0.5)
        for nodes in windows(graph, order, cut_positions(graph, order))
        for engine in ("onnxruntime", "openvino")
    ]
    rng.shuffle(found)
    return graph, found
