"""``collage check-backend`` and ``collage new-backend``: what they print, write, and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.helpers.cli.helpers import collage, fails, succeeds

WRONG, RIGHT = "tests.helpers.planted:OffByLittle", "tests.helpers.planted:Right"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[3,5] x) => (float[3,5] y) { y = Relu(x) }'
    onnx.save_model(onnx.parser.parse_model(text), str(tmp_path / "relu.onnx"))
    return tmp_path / "relu.onnx"


def test_findings_are_a_table_and_scripts(model: Path, tmp_path: Path) -> None:
    result = collage("check-backend", WRONG, "--model", model, "--only", "numbers", "--output", tmp_path / "found")
    assert result.exit_code == 1
    assert "numbers" in result.stdout
    assert "relu float32[3x5] -> float32[3x5]" in result.stdout
    assert result.stdout.endswith("1 defect\n")
    (script,) = (tmp_path / "found").iterdir()
    assert script.name == "01_numbers.py"
    compile(script.read_text(), script, "exec")


def test_findings_as_json(model: Path) -> None:
    result = collage("check-backend", WRONG, "--model", model, "--only", "numbers", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    (found,) = report["findings"]
    assert (report["defects"], found["kind"], found["where"]["operators"]) == (1, "numbers", "relu")
    counts = {"claimed": 2, "checked": 2}
    assert report["kernels"] == {**counts, "by_dtype": {"float32": counts}}
    assert found["script"].startswith('"""numbers: ')


def test_a_right_backend_has_no_defects(model: Path) -> None:
    assert succeeds("check-backend", RIGHT, "--model", model, "--threads", 1).endswith("0 defects\n")
    assert "0 defects" in succeeds("check-backend", "native", "--model", model, "--threads", 1, "--only", "numbers")


def test_dtypes_that_nothing_was_tried_for_are_named(model: Path, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float16[3,5] x) => (float16[3,5] y) { y = Relu(x) }'
    onnx.save_model(onnx.parser.parse_model(text), str(tmp_path / "half.onnx"))
    call = "check-backend", RIGHT, "--model", model, "--model", tmp_path / "half.onnx", "--threads", 1
    wanted = "1 of 1 claimed kernels checked (float32: 1; none: float16)\n0 defects\n"
    assert succeeds(*call).endswith(wanted)


def test_open_shapes_are_given_or_have_one_row(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[N,L] x) => (float[N,L] y) { y = Relu(x) }'
    onnx.save_model(onnx.parser.parse_model(text), str(tmp_path / "open.onnx"))
    onnx.save_model(onnx.parser.parse_model(text.replace("N,L", "N,5")), str(tmp_path / "rows.onnx"))
    call = "check-backend", WRONG, "--only", "numbers", "--threads", 1
    fails(2, *call, "--model", tmp_path / "open.onnx", words=("x: N x L", "--shape x:1x"))
    assert "float32[2x7]" in collage(*call, "--model", tmp_path / "open.onnx", "--shape", "x:2x7").stdout
    assert "float32[1x5]" in collage(*call, "--model", tmp_path / "rows.onnx").stdout
    fails(2, *call, "--shape", "x:2x7", words=("--shape is for --model",))


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("nowhere:Backend", ("nowhere cannot be imported", "ModuleNotFoundError")),
        ("tests.helpers.planted:Left", ("has no 'Left'", "MODULE:CLASS")),
        ("tests.helpers.planted:RightKernel", ("is no class derived from collage.Backend", "RightKernel")),
        ("onnx_runtime", ("unknown backend: onnx_runtime", "onnxruntime")),
    ],
)
def test_what_is_no_backend(backend: str, words: tuple[str, ...]) -> None:
    fails(2, "check-backend", backend, words=words)


def test_other_wrong_calls(model: Path, tmp_path: Path) -> None:
    fails(2, "check-backend", RIGHT, "--only", "numeric", words=("unknown check: numeric", "numbers"))
    fails(1, "check-backend", RIGHT, "--model", tmp_path / "none.onnx", words=("none.onnx",))


def test_the_help_lists_the_checks() -> None:
    text = succeeds("check-backend", "--help")
    assert "unwritten" in text
    assert "{checks}" not in text


def test_a_new_backend_is_written_once(tmp_path: Path) -> None:
    said = succeeds("new-backend", "my_filter", "--output", tmp_path / "new")
    assert "collage check-backend my_filter" in said
    assert (tmp_path / "new" / ".github" / "workflows" / "test.yml").exists()
    fails(2, "new-backend", "my_filter", "--output", tmp_path / "new", words=("exists already",))
    fails(2, "new-backend", "native", "--output", tmp_path / "other", words=("native is taken",))
