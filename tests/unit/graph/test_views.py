"""Which concatenations and splits cost nothing, and in which layouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.graph.dataflow import Graph, Node, TensorType, Value
from collage.graph.storage import (
    BLOCKED,
    PLAIN,
    STORAGES,
    stored_type,
    to_layout,
)
from collage.graph.views import PART_BYTES, free_storages
from tests.helpers.storage_formats import COLUMNS, DEVICE, DEVICE_COLUMNS


def graph_of(
    shapes: Sequence[Sequence[int]], nodes: Sequence[tuple[str, Sequence[int], Sequence[int], int | None]]
) -> Graph:
    """Values of these shapes, and (op, inputs, outputs, axis)."""
    producer = {value: number for number, (_, _, outputs, _) in enumerate(nodes) for value in outputs}
    values = [Value(v, TensorType(tuple(s), "float32"), producer.get(v)) for v, s in enumerate(shapes)]
    made = [
        Node(number, op, tuple(inputs), tuple(outputs), {} if axis is None else {"axis": axis})
        for number, (op, inputs, outputs, axis) in enumerate(nodes)
    ]
    given_values = [v for v in range(len(shapes)) if v not in producer]
    read = {v for _, inputs, _, _ in nodes for v in inputs}
    return Graph(tuple(made), tuple(values), tuple(given_values), tuple(v for v in producer if v not in read))


def joined(*shapes: Sequence[int], axis: int = 1) -> Graph:
    """The concatenation is the last node."""
    whole = list(shapes[0])
    whole[axis] = sum(shape[axis] for shape in shapes)
    count = len(shapes)
    made = [("nn.relu", [v], [count + v], None) for v in range(count)]
    parts = range(count, 2 * count)
    return graph_of([*shapes, *shapes, whole], [*made, ("concat", parts, [2 * count], axis)])


def test_channels_of_one_picture() -> None:
    graph = joined((1, 32, 7, 7), (1, 16, 7, 7), (1, 5, 7, 7))
    assert free_storages(graph, graph.nodes[-1]) == (PLAIN, BLOCKED)
    graph = joined((1, 24, 7, 8), (1, 16, 7, 8))  # 24 channels end inside a block
    assert free_storages(graph, graph.nodes[-1]) == (PLAIN,)
    graph = joined((1, 3, 7, 7), (1, 16, 7, 7))  # 588 bytes
    assert free_storages(graph, graph.nodes[-1]) == ()
    graph = joined((1, 32, 1, 1), (1, 16, 1, 1))
    assert free_storages(graph, graph.nodes[-1]) == STORAGES


@pytest.mark.parametrize("renamed", [False, True])
def test_a_value_is_joined_in_one_place_only(renamed: bool) -> None:
    kind = (1, 32, 4, 4)
    another_name = ("reshape" if renamed else "nn.relu", [2], [4], None)
    graph = graph_of(
        [kind, kind, kind, kind, kind, (1, 64, 4, 4), (1, 64, 4, 4)],
        [
            ("nn.relu", [0], [2], None),
            ("nn.relu", [1], [3], None),
            another_name,
            ("concat", [2, 3], [5], 1),
            ("concat", [4, 3 if not renamed else 4], [6], 1),
        ],
    )
    assert free_storages(graph, graph.nodes[3]) == (PLAIN, BLOCKED)
    assert free_storages(graph, graph.nodes[4]) == ()


def test_splits_of_which_all_is_used() -> None:
    parts = [(1, 32, 4, 4), (1, 16, 4, 4)]
    use = ("nn.relu", [1], [3], None)
    whole = [(1, 48, 4, 4), *parts, parts[0], parts[1]]
    graph = graph_of(whole, [("split", [0], [1, 2], 1), use, ("nn.relu", [2], [4], None)])
    assert free_storages(graph, graph.nodes[0]) == (PLAIN, BLOCKED)
    found = Graph(graph.nodes[:2], graph.values, graph.inputs, (3,))
    assert free_storages(found, found.nodes[0]) == ()
    again = graph_of([*whole[:3], (1, 48, 4, 4)], [("split", [0], [1, 2], 1), ("concat", [1, 2], [3], 1)])
    assert free_storages(again, again.nodes[1]) == ()  # the parts have their place already


shapes = st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(1, 5), st.integers(1, 5))


@given(shapes, st.lists(st.integers(1, 4).map(lambda n: 8 * n), min_size=2, max_size=3), st.integers(0, 3))
def test_what_is_joined_lies_there_one_after_another(shape: tuple[int, ...], extents: list[int], axis: int) -> None:
    """In every layout that is said to be free, and in every other one it does not, or not aligned."""
    parts = [(*shape[:axis], n, *shape[axis + 1 :]) for n in extents]
    graph = joined(*parts, axis=axis)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(part).astype(np.float32) for part in parts]
    free = free_storages(graph, graph.nodes[-1])
    for layout in STORAGES:
        pieces = [to_layout(each, layout).reshape(-1) for each in arrays]
        whole = to_layout(np.concatenate(arrays, axis), layout).reshape(-1)
        together = np.concatenate(pieces)
        aligned = all(stored_type(graph.type_of(v), layout).nbytes % PART_BYTES == 0 for v in range(len(parts) - 1))
        assert (layout in free) == (aligned and np.array_equal(together, whole))


def test_in_storages_of_plug_ins() -> None:
    """Reshapes wherever the format is the plain one; concatenations where the format says that parts stay whole."""
    storages = (*STORAGES, COLUMNS, DEVICE, DEVICE_COLUMNS)
    graph = joined((16, 32), (16, 16), axis=1)
    assert free_storages(graph, graph.nodes[-1], storages) == (COLUMNS, DEVICE_COLUMNS)
    graph = joined((16, 32), (8, 32), axis=0)
    assert free_storages(graph, graph.nodes[-1], storages) == (PLAIN, DEVICE)
    graph = graph_of([(4, 8), (8, 4)], [("reshape", [0], [1], None)])
    assert free_storages(graph, graph.nodes[0], storages) == (PLAIN, DEVICE)
