"""Finding the models of a run: files, and workloads by name, whose files are made when they are missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from collage.errors import CollageError, UsageError, unknown_names
from scripts.lib import ROOT
from scripts.lib.workloads.catalogue import ENTRIES, PAPER

SCRIPT = ROOT / "scripts" / "models"


def find_models(names: Sequence[str], folder: Path, batch: int) -> list[Path]:
    """Paths of the models; no names stand for the paper's five. Files of a batch above 1 are in a folder of their own.

    Raises UsageError for what is neither, and CollageError when a file cannot be made.
    """
    given = [name for name in names if name not in ENTRIES]
    unknown = [name for name in given if not name.endswith(".onnx")]
    if unknown:
        raise unknown_names("model", unknown, [*ENTRIES, "the path of an .onnx file"])
    if given and batch != 1:
        raise UsageError(f"--batch is for the workloads, not for files: {', '.join(given)}.")
    home = folder if batch == 1 else folder / f"batch-{batch}"
    paths = {name: home / f"{name}.onnx" for name in names or PAPER if name in ENTRIES}
    missing = [name for name, path in paths.items() if not path.exists()]
    if missing:
        _make(missing, home, batch)
    return [paths.get(name) or Path(name) for name in names or PAPER]


def _make(names: Sequence[str], folder: Path, batch: int) -> None:
    command = [sys.executable, str(SCRIPT), *names, "--out", str(folder), "--batch", str(batch)]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise CollageError(f"scripts/models could not make {', '.join(names)} in {folder}; see above.")
