"""The kit finds each planted defect, nothing in a right backend, and its scripts show what they were written for."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import collage
from collage.testing import CHECKS, Finding, check_backend, check_kernel
from tests.helpers.planted import PLANTED, TEXT, OffByLittle, Right

ROOT = Path(__file__).resolve().parents[3]
MODELS = (
    *(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float{shape} x) => (float{shape} y) {{ y = Relu(x) }}'
        for shape in ("", "[5]", "[3,37]", "[1,4,3,5]", "[70,1000]")
    ),
    """<ir_version: 8, opset_import: ["" : 18]> g (float[5,4] x) => (float[5,4] y)
    <float[4,4] w = {1,2,3,4,-1,1,2,5,0,3,1,1,2,2,-3,1}> { y = MatMul(x, w) }""",
)


def defects_of(backend: collage.Backend, threads: int) -> list[Finding]:
    return check_backend(backend, models=MODELS, threads=[threads], time_limit_s=2)


@pytest.mark.parametrize(("kind", "backend"), PLANTED, ids=[each.name for _, each in PLANTED])
def test_each_defect_is_found_and_its_script_shows_it(
    kind: str, backend: collage.Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = defects_of(backend, 2 if kind == "threads" else 1)
    assert {each.kind for each in found} == {kind}
    script = tmp_path / "script.py"
    script.write_text(found[0].script)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script))
    assert end.value.code == 1
    assert capsys.readouterr().out.startswith(f"{kind}: ")


def test_the_error_of_a_compile_has_the_reason_why_no_kernel_runs(tmp_path: Path) -> None:
    registry = collage.builtin_registry(with_entry_points=False)
    registry.register(TEXT)
    model = onnx.parser.parse_model(MODELS[1])
    with pytest.raises(collage.ModelError, match=r"\(text: codegen: TypeError: an artifact is bytes, and no str\)"):
        collage.compile(model, backends=["text"], registry=registry, db=tmp_path / "db", quick=True, progress=False)


def test_a_script_stands_alone(tmp_path: Path) -> None:
    (found,) = check_kernel(OffByLittle(), MODELS[1], only=["numbers"])
    script = tmp_path / "script.py"
    script.write_text(found.script)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(ROOT)  # where Collage is not installed
    command = [sys.executable, str(script)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert (run.returncode, run.stdout) == (1, f"{found}\n"), run.stderr


def test_nothing_is_found_in_a_right_backend() -> None:
    assert defects_of(Right(), 2) == []


def test_every_check_that_finds_defects_is_planted() -> None:
    assert {kind for kind, _ in PLANTED} == CHECKS.keys() - {"reproducible", "time"}
