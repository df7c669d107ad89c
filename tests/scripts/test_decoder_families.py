"""`decoder_families` without transformers: its list, what it says without packages, rows, and the comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from collage.api import default_registry
from collage.errors import CollageError
from collage.serve import Slice
from collage.serve.decoder.build import compile_decoder
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.original import OriginalDecoder
from collage.serve.decoder.runner import DecoderRunner
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small
from scripts.lib.families.compare import LENGTHS, TOKENS, compare, prompts
from scripts.lib.families.errors import PackagesMissingError, UnknownFamilyError
from scripts.lib.families.main import main, untested
from scripts.lib.families.names import EXPORTERS, PACKAGES
from scripts.lib.families.processes import exporters
from scripts.lib.families.rows import NO_EXPORT, REFUSED, RIGHT, WRONG, Row, as_json, summary
from scripts.lib.families.sweep import Places, Sweep
from scripts.lib.families.table import FAMILIES, chosen

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "decoder_families"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    for name in (*(each.name for each in FAMILIES), *EXPORTERS):
        assert f"{name} " in printed
    assert len({each.name for each in FAMILIES}) == len(FAMILIES)


def test_families_are_chosen_by_name() -> None:
    assert chosen([]) == list(FAMILIES)
    assert [each.name for each in chosen(["llama", "gpt2"])] == ["gpt2", "llama"]
    with pytest.raises(UnknownFamilyError, match=r"unknown: lama, x\. Valid: .*llama"):
        chosen(["x", "lama", "llama"])
    for option, value in (("--families", "lama"), ("--exporters", "tf")):
        done = run(option, value)
        assert done.returncode == 2
        assert f"unknown: {value}. Valid: " in done.stderr


def test_packages_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An interpreter without any packages is told apart from one that cannot be run."""
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o700)
    assert main(["--exporter-python", str(bare)]) == 2
    said = capsys.readouterr().err
    assert f"{bare} has no {', '.join(PACKAGES)}. " in said
    assert "'optimum-onnx==" in said and "--exporter-python" in said
    with (
        pytest.raises(PackagesMissingError, match="cannot be run: No such file"),
        exporters("none", tmp_path),
    ):
        pass
    assert [*tmp_path.iterdir()] == [bare]


def test_versions_that_were_not_tried() -> None:
    versions = dict.fromkeys(PACKAGES, "0.0.1") | {"torch": "2.13.0+cpu"}
    notes = untested(versions)
    assert len(notes) == len(PACKAGES) - 1
    assert not any("torch " in each for each in notes)


ROWS = [
    Row("gpt2", "optimum", RIGHT, "", 1e-6, 3.0),
    Row("gpt2", "torch-23", RIGHT, "1 tokens at a tie", 1e-6, 3.0),
    Row("phi", "optimum", WRONG, "its process ended (SIGSEGV)", None, 3.0),
    Row("gpt-oss", "optimum", REFUSED, "no sinks", None, 3.0),
    Row("xglm", "optimum", NO_EXPORT, "ValueError: unsupported", None, 3.0),
]


def test_rows_and_their_summary() -> None:
    assert str(ROWS[0]).split(maxsplit=4)[4] == "accepted, largest error 1.0e-06"
    assert str(ROWS[2]).endswith("WRONG: its process ended (SIGSEGV)")
    lines = summary(ROWS).splitlines()
    assert lines == [
        "4 exports of 3 families: 3 accepted, of which 2 are right; 1 refused",
        "wrong: phi (optimum)",
        "refused: gpt-oss (optimum)",
        "cannot be exported: xglm (optimum)",
    ]
    found = as_json(ROWS, {"torch": "2.13.0"})
    assert found["counts"] == {RIGHT: 2, WRONG: 1, REFUSED: 1, NO_EXPORT: 1}
    assert found["exports"][2]["about"] == "its process ended (SIGSEGV)"


class Stand:
    """A server that does nothing by itself: it answers as it is told, and leaves files as an exporter does."""

    def __init__(self, answers: Sequence[Mapping[str, Any]]) -> None:
        self.answers = [*answers]
        self.asked: list[Mapping[str, Any]] = []

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if answer.get("problem") == "":
            (Path(request["folder"]) / "model.onnx").write_bytes(b"model")
        return answer


@pytest.mark.parametrize("keep", [False, True])
def test_the_sweep_goes_on(tmp_path: Path, keep: bool) -> None:
    exports = Stand([{"problem": "no"}, {"ended": "it took more than 1 s"}, {"problem": ""}, {"problem": ""}])
    checks = Stand([{"ended": "crash"}, {"verdict": RIGHT, "about": "", "error": 0.0}])
    places = Places(tmp_path / "exports", keep, tmp_path, tmp_path / "db")
    (tmp_path / "exports").mkdir()
    found = Sweep(exports, checks, places, 1.0)  # type: ignore[arg-type]
    rows = [*found.rows(chosen(["gpt2", "llama"]), ["optimum", "torch-23"])]
    assert [each.verdict for each in rows] == [NO_EXPORT, NO_EXPORT, WRONG, RIGHT]
    left = sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.onnx"))
    assert left == [f"exports/llama/{name}/model.onnx" for name in ("optimum", "torch-23")] * keep
    if keep:
        checks.answers = [{"verdict": REFUSED, "about": "no", "error": None}]
        (again,) = found.rows(chosen(["llama"]), ["optimum"])
        assert again.verdict == REFUSED and not exports.answers


FORKS = """
import os, time
from scripts.lib.families.forks import serve
def work(request):
    if request["do"] == "crash":
        os.abort()
    if request["do"] == "raise":
        raise ValueError("something odd")
    while request["do"] == "hang":
        time.sleep(1)
    print("noise")
    return {"did": request["do"]}
serve(lambda: {"ready": True}, work)
"""


def test_a_fork_may_end_in_any_way() -> None:
    wishes = ["this", "crash", "raise", "hang", "that"]
    requests = "".join(json.dumps({"do": each, "limit_s": 1}) + "\n" for each in wishes)
    done = subprocess.run(
        [sys.executable, "-c", FORKS], input=requests, capture_output=True, text=True, cwd=ROOT
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"ready": True},
        {"did": "this"},
        {"ended": "its process ended (SIGABRT)"},
        {"ended": "its process ended (exit status 1)"},
        {"ended": "it took more than 1 s"},
        {"did": "that"},
    ]
    assert "ValueError: something odd" in done.stderr and "noise" in done.stderr


def test_prompts_begin_differently_and_fit() -> None:
    assert [len(each) for each in prompts(128, 4096)] == list(LENGTHS)
    assert max(map(len, prompts(128, 40))) == 40 - TOKENS
    assert len({each[0] for each in prompts(128, 4096)}) == len(LENGTHS)


class Changed:
    """A runner that adds something to a logit of each row."""

    def __init__(self, runner: DecoderRunner, token: int, more: float) -> None:
        self._runner, self._token, self._more = runner, token, more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        found = self._runner.step(slices).copy()
        found[:, self._token] += self._more
        return found


def test_comparison(tmp_path: Path) -> None:
    """A decoder is right, and one whose logits are a little or much larger is not."""
    model = decoder(small(NAMED["qwen2_like"]))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, str(path))
    registry = default_registry()
    options = DecoderOptions(
        (16,), quick=True, backends=("onnxruntime",), threads=1, db=tmp_path / "db.sqlite"
    )
    with closing(
        DecoderRunner(compile_decoder(path, options, registry, lambda _: None), registry, 16)
    ) as runner:
        original = OriginalDecoder(path, 1)
        right = compare(runner, original)
        assert not right.problem and right.error < 1e-4
        little = compare(Changed(runner, 5, 0.1), original)  # type: ignore[arg-type]
        assert little.problem.startswith("a logit differs by ") and 1e-3 < little.error < 0.2
        much = compare(Changed(runner, 5, 100.0), original)  # type: ignore[arg-type]
        assert much.problem.startswith("token 0 after a prompt of 3 is 5, and ")
        nothing = Changed(runner, 5, float("nan"))
        with pytest.raises(CollageError, match="not numbers"):
            compare(nothing, original)  # type: ignore[arg-type]
