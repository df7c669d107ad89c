"""What the README shows works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from collage.cli.main import main

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_backend_of_the_readme_is_measured(network: Path, tmp_path: Path) -> None:
    (code,) = (block for block in blocks("python") if "register_backend" in block)
    arguments = f"{str(network)!r}, db={str(tmp_path / 'db')!r}, backends=['numpy_relu', 'tvm']"
    check = (
        "candidates = [c for node in module.summary()['nodes'] for c in node['candidates']]\n"
        "ours = [c for c in candidates if c['backend'] == 'numpy_relu']\n"
        "assert any('cost_us' in c for c in ours), ours\n"
        "assert any('no kernel for tanh' in c['verdict'] for c in ours), ours\n"
    )
    script = tmp_path / "backend.py"
    script.write_text(code.replace('"model.onnx"', arguments) + check)
    environment = {**os.environ, "PYTHONPATH": str(README.parent)}
    subprocess.run([sys.executable, script], check=True, env=environment)


@pytest.mark.parametrize(
    "line", [line for block in blocks("sh") for line in block.splitlines() if line.startswith("collage ")]
)
def test_commands_and_options_of_the_readme_exist(line: str) -> None:
    words = shlex.split(line, comments=True)
    text = CliRunner().invoke(main, [words[1], "--help"]).output
    assert "Usage:" in text
    for word in words[2:]:
        if word.startswith("-"):
            assert word in text
