"""Tuned convolutions: right numbers, a record that rebuilds the kernel elsewhere, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

pytest.importorskip("tvm")

from collage.backends.base import UnsupportedError
from collage.backends.tvm import Tvm
from collage.backends.tvm_codegen.tuned import format_record, parse_record
from collage.errors import DatabaseError
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_array, aligned_copy
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from tests.helpers.models import make_model

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = BuildOptions(threads=1, tune_trials=4)


def conv(channels: int = 16, size: int = 16, groups: int = 1) -> onnx.ModelProto:
    """conv2d 3x3 (by default 1.2 MFLOP, more than is built without tuning) + bias + sigmoid."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((channels, channels // groups, 3, 3)).astype(np.float32) * 0.1,
        "b": rng.standard_normal(channels).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], group=groups),
        helper.make_node("Sigmoid", ["c"], ["y"]),
    ]
    shape = [1, channels, size, size]
    return make_model(nodes, {"x": shape}, {"y": shape}, weights)


def whole(model: onnx.ModelProto) -> Subgraph:
    imported = import_model(model)
    return Subgraph(imported, tuple(range(len(imported.graph.nodes))))


def run(subgraph: Subgraph, options: BuildOptions, x: Array) -> Array:
    (kind,) = subgraph.output_types
    output = aligned_array(kind)
    output.fill(np.nan)
    backend = Tvm()
    kernel = backend.load(backend.codegen(subgraph, options), options)
    kernel.bind([aligned_copy(x)], [output])()
    return output


def test_a_tuned_convolution_is_right_and_its_record_rebuilds_it_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    subgraph = whole(conv())
    with pytest.raises(UnsupportedError, match=r"needs a tuned schedule \(--tune-trials\)"):
        Tvm().codegen(subgraph, OPTIONS)
    record = Tvm().tune(subgraph, OPTIONS)
    assert list(parse_record(record)) == ["kernel_0"]
    assert len(record) < 20_000
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")

    x = np.random.default_rng(1).standard_normal((1, 16, 16, 16)).astype(np.float32)
    session = ort.InferenceSession(conv().SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    actual = run(subgraph, replace(OPTIONS, tuning=record), x)
    np.testing.assert_allclose(actual, expected, atol=1e-5)

    (tmp_path / "record.json").write_text(record)
    np.save(tmp_path / "x.npy", x)
    program = """
import sys
from pathlib import Path
import numpy as np
from tests.slow.backends.test_tvm_tuning import BuildOptions, conv, run, whole
np.save("y.npy", run(whole(conv()), BuildOptions(1, tuning=Path("record.json").read_text()), np.load("x.npy")))
assert "collage.backends.tvm_codegen.tune" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=60)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), actual)


@pytest.fixture(scope="module")
def tuned() -> tuple[Subgraph, str]:
    """A convolution and its record."""
    subgraph = whole(conv())
    return subgraph, Tvm().tune(subgraph, OPTIONS)


IR = """
@llvm.used = appending global [1 x ptr] [ptr @evil], section "llvm.metadata"
define void @evil() { ret void }
"""


def _annotated(key: str, value: Any) -> Callable[[list[Any], list[Any]], None]:
    return lambda instructions, _: instructions.append(["Annotate", [_loop(instructions), value], [key], []])


def _loop(instructions: list[Any]) -> str:
    """A loop of the schedule; tuned ones need not annotate any."""
    return next(str(name) for i in reversed(instructions) for name in i[3] if str(name).startswith("l"))


def _appended(*instruction: Any) -> Callable[[list[Any], list[Any]], None]:
    return lambda instructions, _: instructions.append([*instruction])


def _zero_tile(instructions: list[Any], decisions: list[Any]) -> None:
    next(d for _, d in decisions if isinstance(d, list))[0] = 0


HOSTILE = {
    "code": _annotated("pragma_import_llvm", f'"{IR}"'),
    "C": _annotated("pragma_import_c", '"int f() {}"'),
    "text": _annotated("meta_schedule.tiling_structure", f'"{IR}"'),
    "object": _annotated("meta_schedule.parallel", '{"root_index":0,"nodes":[{"type":"ffi.Module"}]}'),
    "nested": _annotated("meta_schedule.parallel", [[['"text"']]]),
    "mapping": _annotated("meta_schedule.parallel", {"a": 1}),
    "huge": _annotated("pragma_auto_unroll_max_step", 1 << 40),
    "unsafe": _appended("UnsafeSetDType", ["b0", 0], ["int8"], []),
    "tensorize": _appended("Tensorize", ["l1", '"dot_4x4"', 1], [], []),
    "layout": _appended("TransformLayout", ["b0"], [0, 0, "{}", None, True], []),
    "scope": _appended("CacheWrite", ["b0", []], [0, "shared"], ["b999"]),
    "unknown": _appended("Run", ["b0"], [], []),
    "short": _appended("Parallel", ["l1"]),
    "zero": _zero_tile,
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_record_that_does_more_than_schedule_is_refused(
    tuned: tuple[Subgraph, str], change: Callable[[list[Any], list[Any]], None]
) -> None:
    """Records travel with databases, and TVM would do whatever they say: compile LLVM IR into the kernel, too."""
    subgraph, text = tuned
    record = json.loads(text)
    change(*record["kernel_0"])
    with pytest.raises(DatabaseError, match=r"holds a schedule for .* that is not used .*--remeasure"):
        Tvm().codegen(subgraph, replace(OPTIONS, tuning=json.dumps(record)))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "null",
        '{"kernel_0": 3}',
        '{"kernel_0": [[], NaN]}',
        "[" * 100_000,
        '{"kernel_0": [[3], []]}',
    ],
)
def test_what_is_no_record_is_refused(tuned: tuple[Subgraph, str], text: str) -> None:
    with pytest.raises(DatabaseError, match="is not used"):
        Tvm().codegen(tuned[0], replace(OPTIONS, tuning=text))


def test_a_record_of_another_kernel_is_refused(tuned: tuple[Subgraph, str]) -> None:
    product = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [64, 96]},
        {"y": [64, 128]},
        {"w": np.ones((96, 128), np.float32)},
    )
    with pytest.raises(DatabaseError, match="it does not fit"):
        Tvm().codegen(whole(product), replace(OPTIONS, tuning=tuned[1]))


def test_where_our_own_schedule_is_the_fastest_the_record_says_so() -> None:
    subgraph = whole(conv(channels=8, size=6, groups=8))
    record = Tvm().tune(subgraph, replace(OPTIONS, tune_trials=1))
    assert list(parse_record(record)) == ["kernel_0"]
    x = np.random.default_rng(1).standard_normal((1, 8, 6, 6)).astype(np.float32)
    own = run(subgraph, replace(OPTIONS, tuning=format_record({"kernel_0": None})), x)
    np.testing.assert_array_equal(own, run(subgraph, OPTIONS, x))


def test_convolutions_are_offered_with_trials_only() -> None:
    context = MatchContext(import_model(conv()))

    def offered(trials: int) -> set[tuple[int, ...]]:
        sources = Tvm().sources(BuildOptions(1, trials))
        return {found.nodes for source in sources for found in source.find(context) if not found.reason}

    assert [node.op for node in context.graph.nodes] == ["nn.conv2d", "add", "sigmoid"]
    assert offered(0) == {(1,), (1, 2), (2,)}
    assert offered(4) == offered(0) | {(0,), (0, 1), (0, 1, 2)}
