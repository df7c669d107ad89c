"""A wheel works in an environment of its own, away from the checkout. It takes minutes, and needs a package index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.helpers.models import elementwise_net

ROOT = Path(__file__).parents[2]


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(1200)
def test_a_wheel_compiles_a_model(tmp_path: Path) -> None:
    run(ROOT, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ".")
    (wheel,) = tmp_path.glob("collage_compiler-*.whl")
    run(tmp_path, sys.executable, "-m", "venv", "own")
    run(tmp_path, "own/bin/python", "-m", "pip", "install", "-q", f"{wheel}[cpu]")
    onnx.save_model(elementwise_net(), str(tmp_path / "net.onnx"))
    options = ("--quick", "--db", "db.sqlite", "-o", "net.collage")
    run(tmp_path, "own/bin/collage", "compile", "net.onnx", *options)
    assert "net" in run(tmp_path, "own/bin/collage", "show", "net.collage")
    run(tmp_path, "own/bin/collage", "run", "net.collage", "--random")
    assert (tmp_path / "own" / "share" / "man" / "man1" / "collage.1").exists()
