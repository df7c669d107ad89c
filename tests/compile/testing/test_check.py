"""What the kit takes and gives: models, choices of kernels, errors; our own backends; the page of operators."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.backends.onnxruntime import OnnxRuntime
from collage.testing import CHECKS, check_backend, check_kernel
from collage.testing.catalogue import catalogue
from scripts.lib.operators import PAGE, page
from tests.helpers.planted import OffByLittle, Right

RELU = '<ir_version: 8, opset_import: ["" : 18]> g (float[3,5] x) => (float[3,5] y) { y = Relu(x) }'
TANH = RELU.replace("Relu", "Tanh")
BACKENDS = collage.builtin_registry(with_entry_points=False)
FEW = (
    "Relu(float32[131x523]) opset 18",
    "Softmax(float32[131x257]) axis=1 opset 18",
    "a = MatMul(x, w) | c = Add(a, b) | y = Relu(c)",
    "a = Conv(x, w, b) | y = Relu(a)",
)
OWN = [name for name, found in BACKENDS.availability().items() if found and not name.endswith("cuda")]


def shape_of(model: onnx.ModelProto) -> tuple[int, ...]:
    """The shape of the first input; that of scalars and constants is (1,)."""
    dims = [each.type.tensor_type.shape.dim for each in model.graph.input]
    return tuple(each.dim_value for each in dims[0]) if dims and dims[0] else (1,)


def test_a_model_of_any_form(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(RELU)
    onnx.save_model(model, str(tmp_path / "model.onnx"))
    for each in (model, RELU, tmp_path / "model.onnx", model.SerializeToString()):
        (found,) = check_kernel(OffByLittle(), each)
        assert found.kind == "numbers"


def test_what_a_rule_does_not_take_is_a_finding_with_the_reason() -> None:
    (found,) = check_kernel(Right(), TANH)
    assert (found.kind, found.defect) == ("rules", True)
    assert "nothing is taken" in found.what
    assert "no kernel for tanh" in found.what


def test_only_what_is_asked_for_is_reported() -> None:
    assert check_kernel(OffByLittle(), RELU, only=["formats", "leak"]) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"only": ["number"]}, "unknown check: number. Valid: available, "),
        ({"variant": "blocked"}, r"no kernel of nodes None in the variant blocked. There are: nodes \(0,\)"),
        ({"nodes": (3,)}, r"no kernel of nodes \(3,\)"),
    ],
)
def test_wrong_calls_say_what_there_is(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(collage.UsageError, match=words):
        check_kernel(Right(), RELU, **arguments)  # type: ignore[arg-type]


def test_what_is_no_model() -> None:
    with pytest.raises(collage.UsageError, match="is not ONNX's textual syntax"):
        check_kernel(Right(), "<ir_version: 8> nonsense")
    with pytest.raises(collage.CollageError, match=r"nowhere\.onnx"):
        check_kernel(Right(), "nowhere.onnx")


def test_a_backend_that_is_not_available_is_not_checked() -> None:
    class Missing(Right):
        def available(self) -> collage.Availability:
            return collage.Availability(reason="the library is missing")

    with pytest.raises(collage.UsageError, match="backend right is not available: the library is missing"):
        check_kernel(Missing(), RELU)


@pytest.mark.parametrize("name", OWN)
def test_our_own_backends(name: str) -> None:
    """A few of the catalogue's models; the release's tests have all of them."""
    models = [each.model for each in catalogue() if each.name in FEW]
    assert len(models) == len(FEW)
    only = [*CHECKS.keys() - {"state", "concurrent", "leak", "reproducible", "time"}]
    found = check_backend(BACKENDS[name], only=only, models=models, threads=[2])
    assert [each for each in found if "nothing is taken" not in each.what] == []


class Sessions(collage.Engine):
    """An engine whose kernels are right, and whose sessions drop the sign."""

    name = "sessions"

    def available(self) -> collage.Availability:
        return OnnxRuntime().available()

    def sources(self, options: collage.BuildOptions) -> Sequence[collage.MatchSource]:
        return ()

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        raise collage.UnsupportedError("whole models only")

    def codegen_model(self, model: onnx.ModelProto, options: collage.BuildOptions) -> bytes:
        return OnnxRuntime().codegen_model(model, options)

    def load(self, artifact: Any, options: collage.BuildOptions) -> collage.Kernel:
        return OnnxRuntime().load(artifact, options)

    def session(self, model: Any, options: collage.BuildOptions) -> collage.Session:
        right = OnnxRuntime().session(model, options)

        class Wrong(collage.Session):
            def run(self, inputs: Sequence[Any]) -> list[Any]:
                return [np.abs(each) for each in right.run(inputs)]

        return Wrong()


def test_sessions_of_engines_are_checked() -> None:
    (found,) = check_kernel(Sessions(), TANH, only=["numbers"])
    assert found.what.startswith("from a session, output 0 differs")


def test_operators_of_rows_have_more_rows_than_a_kernel_takes_at_once() -> None:
    rows: dict[str, int] = {}
    for each in catalogue():
        (*before, _), node = shape_of(each.model), each.model.graph.node[-1]
        rows[node.op_type] = max(rows.get(node.op_type, 0), math.prod(before))
    wanted = "Softmax LogSoftmax Relu Gelu Add LayerNormalization RMSNormalization ReduceSum ReduceMax ArgMax MatMul"
    assert min(rows[each] for each in wanted.split()) > 128


def test_onnx_runtime_runs_each_model_of_the_catalogue() -> None:
    for each in catalogue():
        onnxruntime.InferenceSession(each.model.SerializeToString())


def test_the_page_of_operators_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run scripts/operators"


def test_the_kit_imports_no_library() -> None:
    code = "import collage.testing, sys; print({'tvm', 'onnx', 'numpy'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
