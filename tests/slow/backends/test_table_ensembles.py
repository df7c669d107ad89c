"""Generated ensembles of trees on the kernels for tables, beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from collage.native.table import table_problem
from tests.helpers.beside_onnxruntime import alike
from tests.helpers.ensembles import COMPARISONS, as_nodes, ensemble, model_of, rows

pytestmark = pytest.mark.skipif(bool(table_problem()), reason=table_problem())


@pytest.mark.parametrize("mode", [*COMPARISONS, "all"])
def test_fifty_ensembles_of_each_mode(mode: str) -> None:
    rng = np.random.default_rng(len(mode))
    for number in range(50):
        dtype = (np.float32, np.float64)[number % 2]
        targets = int(rng.choice([1, 3]))
        kind = ("target", "class")[number // 2 % 2] if targets > 1 else "target"
        modes = [*COMPARISONS] if mode == "all" else [mode]
        about = {"trees": int(rng.choice([1, 6, 70])), "leaves": int(rng.choice([2, 15, 80, 300]))}
        e = ensemble(rng, modes, **about, targets=targets, missing=bool(rng.integers(2)), dtype=dtype)
        attributes = as_nodes(rng, e, kind)
        post = str(rng.choice(["NONE", "SOFTMAX", "LOGISTIC"])) if targets > 1 else "NONE"
        attributes["post_transform"] = post
        if kind == "target":
            attributes |= {"n_targets": targets, "aggregate_function": str(rng.choice(["SUM", "AVERAGE"]))}
            model = model_of("TreeEnsembleRegressor", attributes, dtype, targets)
        else:
            attributes["classlabels_int64s"] = [-1, 4, 9]
            model = model_of("TreeEnsembleClassifier", attributes, dtype, targets)
        alike(model, {"X": rows(rng, int(rng.choice([8, 70, 300])), dtype)}, atol=1e-5)
