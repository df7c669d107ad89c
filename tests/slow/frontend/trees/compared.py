"""Models of the tree libraries in ONNX Runtime, beside the libraries themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from collage.backends.base import UnsupportedError
from collage.backends.tables import Tables
from collage.frontend.session import reference_run
from collage.kernel.options import BuildOptions

Array = NDArray[Any]
ROWS = 50
"""As many rows ONNX Runtime predicts one by one, with sums in the order of the trees."""
_DTYPES = {onnx.TensorProto.DOUBLE: np.float64, onnx.TensorProto.FLOAT: np.float32}


def table(seed: int, rows: int = 400) -> Array:
    """Numbers, whole numbers, NaN, zeros, and in columns 3 and 4 categories."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((rows, 5))
    found[:, 1] = found[:, 1].round()
    found[rng.random(found.shape) < 0.1] = 0
    found[rng.random(found.shape) < 0.15] = np.nan
    found[:, 3], found[:, 4] = rng.integers(0, 40, rows), rng.integers(0, 5, rows)
    return found


def target(x: Array) -> Array:
    """What depends on all columns."""
    noise = np.random.default_rng(0).standard_normal(len(x))
    return np.nan_to_num(x[:, 0]) + 0.3 * (x[:, 3] % 3) - 0.4 * (x[:, 4] == 2) + 0.2 * noise


def hostile(seed: int, thresholds: Sequence[float], *, infinite: bool = True) -> Array:
    """Rows on the thresholds and beside them, with NaN, zeros of both signs, and categories never seen."""
    rng = np.random.default_rng(seed)
    found = table(seed, ROWS)
    at = rng.random(found.shape) < 0.3
    found[at] = rng.choice(np.asarray([*thresholds, 0.0]), at.sum())
    near = float(np.float32(1e-35))
    for special in (np.nan, 0.0, -0.0, near, -near, 1e-36, 2 * near, -0.5, -1.0, 99.0, 2.7, 1e10, 3e38):
        found[rng.random(found.shape) < 0.02] = special
    if infinite:
        for special in (np.inf, -np.inf):
            found[rng.random(found.shape) < 0.02] = special
    return found


def outputs(model: onnx.ModelProto, rows: Any) -> tuple[Any, Any]:
    """What the model gives for ``predict`` and ``predict_proba``, None without the latter. It is checked first."""
    onnx.checker.check_model(model, full_check=True)
    meta = {each.key: each.value for each in model.metadata_props}
    first = model.graph.input[0]
    if not isinstance(rows, dict):
        rows = {first.name: rows.astype(_DTYPES[first.type.tensor_type.elem_type])}
    names = [each.name for each in model.graph.output]
    found = dict(zip(names, reference_run(model, rows), strict=True))
    for name, own in zip(names, on_kernels(model, [*rows.values()]), strict=False):
        assert_close(own, found[name], rtol=1e-6, atol=1e-9 if found[name].dtype == np.float64 else 1e-6)
    assert meta["collage.predict"] == names[0]
    for output in model.graph.output:  # the declared shapes are those of any number of rows
        dims = output.type.tensor_type.shape.dim
        assert dims[0].dim_param == "rows" and [d.dim_value for d in dims[1:]] == [*found[output.name].shape[1:]]
    return found[names[0]], found.get(meta.get("collage.predict_proba", ""))


def on_kernels(model: onnx.ModelProto, rows: Sequence[Any]) -> list[Any]:
    """What our own kernels give, the same for all rows and for one; nothing if they take no part."""
    try:
        session = Tables().session(model.SerializeToString(), BuildOptions(threads=2))
    except UnsupportedError as error:
        # No trees; or which classes have scores depends on the row.
        if "some leaves" in str(error) or not any("Tree" in node.op_type for node in model.graph.node):
            return []
        raise
    found = session.run(rows)
    for some in (slice(3, 10), slice(0, 1), slice(-1, None)):
        for each, whole in zip(session.run([column[some] for column in rows]), found, strict=True):
            np.testing.assert_array_equal(each, whole[some])
    return found


def assert_close(found: Any, wanted: Any, rtol: float = 1e-6, atol: float = 0) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    if wanted.dtype.kind in "iufb" and found.dtype.kind in "iufb":
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(found.astype(str), wanted.astype(str))
