"""How often memory is asked for or given back between a module's first kernel and its last.

A program of its own, because the counting functions must be there before anything else:

    python -m tests.helpers.module.allocations MODULE.collage [--runs N] [--control]

prints one JSON object. With ``--control`` a launch that allocates stands among the kernels.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import collage
from collage.cli.arrays import fill_inputs
from collage.native import LaunchList, Step, Task
from collage.native.library import address_of
from collage.runtime.bound import BoundCall
from scripts.lib import ROOT

_SOURCE = Path(__file__).with_suffix(".c")
_WARM_RUNS = 20


def build(folder: Path) -> Path | None:
    """Build the library that is preloaded, in the folder. Returns its path, or None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "allocations.so"
    command = [
        compiler,
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        str(_SOURCE),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True, timeout=60)
    return library


def count(file: Path, *, runs: int = 100, control: bool = False) -> dict[str, Any] | None:
    """Count in a process of its own: launches, calls from Python, and allocations and releases in a run by library.

    The last is None where an engine's call comes first or last.

    None without a C compiler.
    """
    with tempfile.TemporaryDirectory(prefix="collage-") as folder:
        library = build(Path(folder))
        if library is None:
            return None
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "tests.helpers.module.allocations", str(file), "--runs", str(runs)]
        done = subprocess.run(
            [*command, *(["--control"] if control else [])],
            env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": paths},
            check=True,
            stdout=subprocess.PIPE,
            timeout=300,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Count in this process, which has the library preloaded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--control", action="store_true")
    arguments = parser.parse_args()
    counter = ctypes.CDLL(None)
    counter.allocations_by.restype = ctypes.c_char_p
    module: Any = collage.load(arguments.file)
    call = module.bind()
    for name, array in fill_inputs(module.program.inputs, {}, np.random.default_rng(0)).items():
        call.inputs[name][...] = array
    calls: list[Any] = call.calls if isinstance(call, BoundCall) else []
    first, last = (calls[0], calls[-1]) if calls else (None, None)
    found: dict[str, Any] = {"launches": len(module.program.launches), "calls_from_python": len(calls)}
    if isinstance(first, LaunchList) and isinstance(last, LaunchList):
        one = [Step((Task(address_of(counter.allocations_one), n=64),))] if arguments.control else []
        switch = address_of(counter.allocations_count)
        begin, end = (Step((Task(switch, n=on),) * first.team.threads) for on in (1, 0))
        counted = [first.between([begin, *one], [end])]
        if len(calls) > 1:
            counted = [first.between([begin, *one], []), *calls[1:-1], last.between([], [end])]
        for each in counted * _WARM_RUNS:
            each()
        before = _seen(counter)
        for each in counted * arguments.runs:
            each()
        made = {name: count - before.get(name, 0) for name, count in _seen(counter).items()}
        found["allocations_per_run"] = {name: count / arguments.runs for name, count in made.items() if count}
    else:
        found["allocations_per_run"] = None  # an engine's call, from Python, comes first or last
    print(json.dumps(found))


def _seen(counter: ctypes.CDLL) -> dict[str, int]:
    found: dict[str, int] = {}
    number = ctypes.c_long()
    while (name := counter.allocations_by(len(found), ctypes.byref(number))) is not None:
        found[name.decode()] = number.value
    return found


if __name__ == "__main__":
    main()
