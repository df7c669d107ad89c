"""ONNX's own tests of operators, made when this is imported, with the same inputs in each process.

That takes some ten seconds, so a fork server imports it once for all children of the suite.
"""

from __future__ import annotations

import warnings

import numpy as np
from onnx.backend.test.loader import load_model_tests

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    np.random.seed(0)
    load_model_tests(kind="node")
