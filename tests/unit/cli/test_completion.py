"""What Tab completes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from collage import api
from collage.cli.completion import MODELS
from collage.cli.main import main


def completed(*words: str) -> Sequence[str]:
    """The choices for the last of these words after ``collage``; a file of any name is a star."""
    found = ShellComplete(main, {}, "collage", "_COLLAGE_COMPLETE").get_completions([*words[:-1]], words[-1])
    return [each.value if each.type == "plain" else "*" for each in found]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.collage", "b.ONNX", "c.txt", "d.md", ".hidden.onnx", "models/one/e.onnx", "models/one/f.onnx"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_and_options() -> None:
    assert completed("comp") == ["compile", "compile-decoder"]
    assert completed("db", "m") == ["merge"]
    assert completed("compile", "m.onnx", "--bud") == ["--budget"]
    assert completed("compile", "m.onnx", "--level", "") == ["op", "graph"]


def test_files_by_their_ends() -> None:
    assert completed("compile", "") == ["b.ONNX", "c.txt", "models/"]
    assert completed("show", "") == ["a.collage", "models/"]
    assert completed("compile", ".h") == [".hidden.onnx"]
    assert completed("bench", "b.ONNX", "--module", "") == ["a.collage", "models/"]


def test_a_folder_that_is_the_only_choice_is_opened() -> None:
    assert completed("compile", "mo") == ["models/one/e.onnx", "models/one/f.onnx"]


def test_other_files_are_left_to_the_shell() -> None:
    assert completed("compile", "d") == completed("compile", "nowhere/x") == ["*"]


def test_names_of_backends() -> None:
    assert completed("compile", "m.onnx", "--backends", "open") == ["openvino"]
    assert completed("compile", "m.onnx", "--backends", "openvino,t")[:2] == ["openvino,tables", "openvino,tensorrt"]
    assert "openvino,openvino" not in completed("bench", "m.onnx", "--engines", "openvino,")
    assert completed("db", "list", "--backend", "mk") == ["mkl"]


def test_files_of_libraries_are_models() -> None:
    assert {*MODELS} == {".onnx", *api._OF_LIBRARIES}
