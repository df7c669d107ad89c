"""The kernels for tables beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime

from collage.backends.tables import Tables
from collage.kernel.options import BuildOptions


def alike(model: onnx.ModelProto, feeds: dict[str, Any], *, atol: float = 1e-6) -> None:
    """The same as ONNX Runtime's, for all rows, a few and one."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # with one thread sums are in the order of the trees
    reference = onnxruntime.InferenceSession(model.SerializeToString(), options)
    session = Tables().session(model.SerializeToString(), BuildOptions(threads=2))
    for some in (slice(None), slice(0, 7), slice(3, 4)):
        given = {name: each[some] for name, each in feeds.items()}
        for own, other in zip(session.run([*given.values()]), reference.run(None, given), strict=True):
            other = np.asarray(other)
            assert own.dtype == other.dtype and own.shape == other.shape
            if other.dtype.kind == "f":
                np.testing.assert_allclose(own, other, rtol=1e-5, atol=atol)
            else:
                np.testing.assert_array_equal(own, other)
