"""The machine's arithmetic limit, measured by a large matrix product on the engine that is best at it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.bench.engines import prepare
from collage.bench.race import race
from collage.core.progress import Progress
from collage.errors import CollageError

SIZE = 1536
ROUNDS = 10
ENGINES = ("onnxruntime", "openvino")


@dataclass(frozen=True)
class Peak:
    """The GFLOP/s of the best run, and the engine that ran it."""

    gflops: float
    engine: str


def measure_peak(threads: int, progress: Callable[[Progress], None]) -> Peak:
    """Race the engines that are installed. Raises CollageError when there is none."""
    with tempfile.TemporaryDirectory(prefix="collage-peak-") as folder:
        path = Path(folder) / "gemm.onnx"
        onnx.save_model(gemm(SIZE), str(path))
        setup = prepare(path, threads=threads)
        setups = {name: replace(setup, engine=name) for name in ENGINES}
        found = race(setups, rounds=ROUNDS, progress=progress)
    if not found.timings:
        raise CollageError(f"no engine runs a matrix product: {dict(found.failed)}")
    engine = min(found.timings, key=lambda name: found.timings[name]["min_us"])
    return Peak(round(2 * SIZE**3 / found.timings[engine]["min_us"] / 1e3, 1), engine)


def gemm(size: int) -> onnx.ModelProto:
    """A model of one matrix product: x [size, size] times constant weights of that shape, in float32."""
    weights = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32) / size**0.5
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "gemm")
    graph = helper.make_graph([node], "gemm", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
