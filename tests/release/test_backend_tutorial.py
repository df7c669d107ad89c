"""docs/backend-tutorial.md, line by line, in an environment of its own. It takes two minutes, and needs an index."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "backend-tutorial.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


def environment(folder: Path) -> Path:
    """A virtual environment that has this one's packages and this checkout; the folder with its commands."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    place = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", place], capture_output=True, text=True, check=True).stdout.strip())
    (packages / "a_checkout.pth").write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n")
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name, run in (
        ("collage", "from collage.cli.main import main as run"),
        ("pytest", "from pytest import console_main as run"),
    ):
        command = folder / "bin" / name
        command.write_text(f"#!{python}\n{run}\nrun()\n")
        command.chmod(0o755)
    return folder / "bin"


@pytest.mark.timeout(900)
def test_the_tutorial_ends_with_a_backend_that_is_chosen(tmp_path: Path) -> None:
    assert len(COMMANDS) < 30
    assert len(TUTORIAL.splitlines()) < 150
    commands = environment(tmp_path / "own")
    path = os.pathsep.join((str(commands), os.environ["PATH"]))
    surroundings = os.environ | {"PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "200"}
    for name in ("PYTHONPATH", "COLLAGE_EFFORT"):
        surroundings.pop(name, None)
    script = "set -e\n" + "\n".join(f"echo '$' {number}\n{line}" for number, line in enumerate(COMMANDS))
    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=surroundings, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    printed = dict(zip(COMMANDS, re.split(r"^\$ \d+\n", run.stdout, flags=re.MULTILINE)[1:], strict=True))
    assert re.search(r"fft_filter +operator library +\S+ +available", printed["collage backends"])
    assert "2 passed" in printed["pytest"]
    assert printed["collage check-backend fft_filter"].endswith("\n0 defects\n")
    assert "dilation=(2,)" in printed["collage check-backend fft_filter --only numbers --output findings || true"]
    assert printed["python findings/01_numbers.py || true"].startswith("numbers: output 0 differs by")
    shown = printed["collage show model.collage --explain"]
    assert "node 0: nn.conv1d (long_filter) on fft_filter" in shown
    assert "only conv1d, not tanh" in shown
    lines = sum(len(file.read_text().splitlines()) for file in written(tmp_path / "fft_filter"))
    assert lines < 150


def written(folder: Path) -> list[Path]:
    """The files that `collage new-backend` has written."""
    names = ("README.md", "pyproject.toml", "fft_filter.py", ".github/workflows/test.yml")
    return [*(folder / name for name in names), *(folder / "tests").glob("*.py")]
