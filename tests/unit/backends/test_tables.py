"""The kernels for tables beside a traversal in numpy, on generated ensembles, and on what no ensemble is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from collage.backends.base import UnsupportedError
from collage.backends.tables_kernels.session import TableSession, program_of
from collage.errors import InputError
from collage.native.table import table_problem
from tests.helpers.ensembles import (
    COLUMNS,
    COMPARISONS,
    MEMBER,
    MODES,
    as_nodes,
    as_tensors,
    ensemble,
    expected,
    model_of,
    rows,
)

pytestmark = pytest.mark.skipif(bool(table_problem()), reason=table_problem())

COUNTS = (1, 2, 5, 63, 64, 65, 130, 300)
"""Numbers of rows: single ones, parts of registers and of blocks, and several blocks."""


def close(dtype: Any) -> dict[str, float]:
    return {"rtol": 1e-5, "atol": 1e-5} if np.dtype(dtype) == np.float32 else {"rtol": 1e-12, "atol": 1e-12}


def scores(model: Any, x: np.ndarray, *, walk: bool) -> np.ndarray:
    """What the kernels give, in two threads."""
    return np.asarray(TableSession(program_of(model, walk_all=walk), 2).run([x])[-1])


@pytest.mark.parametrize("walk", [False, True])
@pytest.mark.parametrize("mode", [*COMPARISONS, "all"])
def test_every_comparison(mode: str, walk: bool) -> None:
    rng = np.random.default_rng(len(mode))
    for dtype in (np.float32, np.float64):
        for leaves, trees in ((1, 1), (2, 3), (17, 70), (65, 5), (129, 3), (257, 2), (500, 2), (1100, 2)):
            modes = [*COMPARISONS] if mode == "all" else [mode]
            missing = bool(rng.integers(2))
            e = ensemble(rng, modes, trees=trees, leaves=leaves, targets=2, missing=missing, dtype=dtype)
            model = model_of("TreeEnsembleRegressor", as_nodes(rng, e) | {"n_targets": 2}, dtype, 2)
            x = rows(rng, int(rng.choice(COUNTS)), dtype)
            np.testing.assert_allclose(scores(model, x, walk=walk), expected(e, x), **close(np.float32))


@pytest.mark.parametrize("walk", [False, True])
@pytest.mark.parametrize("mode", [*MODES, "all"])
def test_version_5(mode: str, walk: bool) -> None:
    rng = np.random.default_rng(len(mode))
    for dtype in (np.float32, np.float64):
        for leaves, trees in ((1, 2), (20, 9), (140, 3), (300, 2)):
            modes = [*MODES] if mode == "all" else [mode]
            e = ensemble(rng, modes, trees=trees, leaves=leaves, missing=bool(rng.integers(2)), dtype=dtype)
            model = model_of("TreeEnsemble", as_tensors(e), dtype, 1, version=5)
            x = rows(rng, int(rng.choice(COUNTS)), dtype)
            np.testing.assert_allclose(scores(model, x, walk=walk), expected(e, x), **close(dtype))


def test_rows_are_the_same_in_any_company() -> None:
    """The sums of a row do not depend on the rows beside it: they are in the order of the trees."""
    rng = np.random.default_rng(0)
    e = ensemble(rng, ["BRANCH_LEQ"], trees=150, leaves=30)
    session = TableSession(program_of(model_of("TreeEnsembleRegressor", as_nodes(rng, e), np.float32, 1)), 1)
    x = rows(rng, 600, np.float32)
    (together,) = session.run([x])
    assert session.run([x[:0]])[0].shape == (0, 1)
    for begin, count in ((0, 1), (599, 1), (3, 2), (40, 7), (100, 64), (17, 300)):
        np.testing.assert_array_equal(session.run([x[begin : begin + count]])[0], together[begin : begin + count])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_trees_in_parts_have_the_sums_of_walked_ones(dtype: Any) -> None:
    """Trees of 256 leaves and more, whose parts are bounded on both sides, among small ones; and a deep one."""
    rng = np.random.default_rng(0)
    found = [ensemble(rng, [*MODES], trees=1, leaves=n, missing=True, dtype=dtype) for n in (3, 257, 512, 9, 1024, 300)]
    trees = [tree for e in found for tree in e["trees"]]
    chain: list[Any] = []
    for feature in range(400):
        chain.append((feature % COLUMNS, "BRANCH_LEQ", rng.normal(), 2 * feature + 1, 2 * feature + 2, False))
        chain.append([(0, float(rng.normal()))])
    trees.append([*chain, [(0, 1.0)]])
    model = model_of("TreeEnsemble", as_tensors({**found[0], "trees": trees}), dtype, 1, version=5)
    for count in COUNTS:
        x = rows(rng, count, dtype)
        np.testing.assert_array_equal(scores(model, x, walk=False), scores(model, x, walk=True))


def test_more_thresholds_than_a_column_of_bins_has() -> None:
    """1,500 thresholds of one feature, each with inputs below it, at it and above it."""
    rng = np.random.default_rng(0)
    numbers = np.sort(rng.normal(size=1500).astype(np.float32))
    trees = [[(0, "BRANCH_LEQ", float(each), 1, 2, False), [(0, 1.0)], [(0, 0.0)]] for each in rng.permutation(numbers)]
    e = {"trees": trees, "targets": 1, "dtype": np.dtype(np.float32)}
    model = model_of("TreeEnsembleRegressor", as_nodes(rng, e), np.float32, 1)
    x = np.zeros((4500, COLUMNS), np.float32)
    low, high = np.float32(-np.inf), np.float32(np.inf)
    x[:, 0] = np.concatenate([numbers, np.nextafter(numbers, low), np.nextafter(numbers, high)])
    for count in (len(x), 1):
        np.testing.assert_array_equal(scores(model, x[-count:], walk=False), expected(e, x[-count:]))


@pytest.mark.parametrize("kind", ["stumps", "levels", "balanced"])
def test_more_columns_than_a_byte_can_tell(kind: str) -> None:
    """1,200 features. One row has its bins in the order of many small trees, and walks through a few large ones."""
    rng = np.random.default_rng(0)
    depth = {"stumps": 1, "levels": 5, "balanced": 8}[kind]
    for nan_true in (False, True):
        features = itertools.cycle(rng.permutation(1200))
        trees = []
        for _ in range({"stumps": 1200, "levels": 300, "balanced": 4}[kind]):
            of_level = [int(next(features)) for _ in range(depth)]
            nodes: list[Any] = []
            for at in range(2**depth - 1):
                level = (at + 1).bit_length() - 1
                feature = int(next(features)) if kind == "balanced" else of_level[level]
                nodes.append((feature, "BRANCH_LEQ", level / 2, 2 * at + 1, 2 * at + 2, nan_true))
            trees.append([*nodes, *([(0, float(rng.integers(9)))] for _ in range(2**depth))])
        e = {"trees": trees, "targets": 1, "dtype": np.dtype(np.float32)}
        model = model_of("TreeEnsembleRegressor", as_nodes(rng, e), np.float32, 1)
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1200
        for count in (1, 3, 300):
            x = rows(rng, count, np.float32, columns=1200)
            np.testing.assert_array_equal(scores(model, x, walk=False), expected(e, x))


def test_symmetric_trees_of_different_depths() -> None:
    rng = np.random.default_rng(0)
    trees = []
    for depth in rng.integers(0, 9, 90):
        levels = [(int(rng.integers(COLUMNS)), float(np.float32(rng.normal()))) for _ in range(depth)]
        tree: list[Any] = []
        for at in range(2 ** (depth + 1) - 1):
            level = (at + 1).bit_length() - 1
            leaf = [(0, float(np.float32(rng.normal())))]
            tree.append(
                leaf
                if level == depth
                else (levels[level][0], "BRANCH_LEQ", levels[level][1], 2 * at + 1, 2 * at + 2, False)
            )
        trees.append(tree)
    e = {"trees": trees, "targets": 1, "dtype": np.dtype(np.float32)}
    model = model_of("TreeEnsembleRegressor", as_nodes(rng, e), np.float32, 1)
    for count in COUNTS:
        x = rows(rng, count, np.float32)
        np.testing.assert_allclose(scores(model, x, walk=False), expected(e, x), **close(np.float32))


def test_two_calls_of_one_session_at_the_same_time() -> None:
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(0)
    e = ensemble(rng, ["BRANCH_LEQ"], trees=200, leaves=60)
    session = TableSession(program_of(model_of("TreeEnsembleRegressor", as_nodes(rng, e), np.float32, 1)), 2)
    inputs = [rows(rng, count, np.float32) for count in (1, 3000, 7, 900) * 4]
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda x: session.run([x])[0], inputs)]
    for x, each in zip(inputs, found, strict=True):
        np.testing.assert_allclose(each, expected(e, x), **close(np.float32))


def test_bound_calls_read_what_is_in_their_arrays() -> None:
    rng = np.random.default_rng(0)
    e = ensemble(rng, ["BRANCH_LT"], trees=80, leaves=30)
    session = TableSession(program_of(model_of("TreeEnsembleRegressor", as_nodes(rng, e), np.float32, 1)), 2)
    for count in (1, 40, 5000):
        x, made = np.zeros((count, COLUMNS), np.float32), np.full((count, 1), np.nan, np.float32)
        call = session.bind([x], [made])
        assert call is not None
        for _ in range(2):
            x[:] = rows(rng, count, np.float32)
            made[:] = np.nan
            call()
            np.testing.assert_allclose(made, expected(e, x), **close(np.float32))
    with pytest.raises(ValueError, match="X has"):
        session.bind([np.zeros((2, COLUMNS + 1), np.float32)], [np.zeros((2, 1), np.float32)])


def test_inputs_of_any_layout() -> None:
    rng = np.random.default_rng(0)
    e = ensemble(rng, ["BRANCH_LEQ"], trees=8, leaves=9)
    session = TableSession(program_of(model_of("TreeEnsembleRegressor", as_nodes(rng, e), np.float32, 1)), 1)
    x = rows(rng, 50, np.float32)
    for given in (np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x[::-1][::-1], x.tolist()):
        np.testing.assert_array_equal(session.run([given])[0], session.run([x])[0])
    with pytest.raises(InputError, match="5 columns"):
        session.run([x[:, :4]])


def broken(change: dict[str, Any]) -> Any:
    rng = np.random.default_rng(0)
    e = ensemble(rng, ["BRANCH_LEQ"], trees=3, leaves=6)
    attributes = as_nodes(rng, e)
    at = attributes["nodes_modes"].index("BRANCH_LEQ")
    for name, value in change.items():
        if isinstance(attributes[name], list) and not isinstance(value, list):
            attributes[name][at] = value
        else:
            attributes[name] = value
    return model_of("TreeEnsembleRegressor", attributes, np.float32, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes_featureids": COLUMNS},
        {"nodes_featureids": -1},
        {"nodes_featureids": 1 << 40},
        {"nodes_truenodeids": 999},
        {"nodes_truenodeids": -1},
        {"nodes_truenodeids": 0},
        {"nodes_modes": "BRANCH_SIDEWAYS"},
        {"nodes_values": float("nan")},
        {"nodes_treeids": 77},
        {"nodes_nodeids": 1 << 60},
        {"nodes_values": [1.0]},
        {"target_ids": 5},
        {"target_nodeids": 999},
        {"target_weights": [1.0]},
    ],
    ids=lambda change: "-".join(f"{name}-{value}" for name, value in change.items()),
)
def test_what_is_no_ensemble_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        program_of(broken(change))


def test_a_tree_of_5000_levels() -> None:
    rng = np.random.default_rng(0)
    depth = 5000
    nodes: list[Any] = []
    for at in range(depth):  # node 2 at: the next one on its right, a leaf on its left
        nodes += [(0, "BRANCH_GT", float(at), 2 * at + 2, 2 * at + 1, False), [(0, float(at))]]
    nodes.append([(0, float(depth))])
    e = {"trees": [nodes], "targets": 1, "dtype": np.dtype(np.float32)}
    model = model_of("TreeEnsembleRegressor", as_nodes(rng, e), np.float32, 1)
    x = np.zeros((100, COLUMNS), np.float32)
    x[:, 0] = rng.integers(-5, depth + 5, 100)
    wanted = np.clip(x[:, :1], 0, depth)
    np.testing.assert_array_equal(scores(model, x, walk=False), wanted)


def test_a_set_is_exact() -> None:
    node = (1, MEMBER, [0, 7, 31, 32, 33, 64, 1000], 1, 2, True)
    e = {"trees": [[node, [(0, 1.0)], [(0, -1.0)]]], "targets": 1, "dtype": np.dtype(np.float32)}
    model = model_of("TreeEnsemble", as_tensors(e), np.float32, 1, version=5)
    x = np.zeros((2000, COLUMNS), np.float32)
    x[:, 1] = np.arange(-500, 1500)
    x[3, 1], x[4, 1], x[5, 1] = np.nan, 31.5, -0.0
    np.testing.assert_array_equal(scores(model, x, walk=False), expected(e, x))
