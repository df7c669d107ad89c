"""Measuring how long a module file takes to load, and the memory that several processes share."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from collage.errors import CollageError
from scripts.lib import ROOT
from scripts.lib.service.callers import made_up
from scripts.lib.service.files import load_one

_CHILD = """
import json, sys, time
start = time.perf_counter()
import numpy as np
import collage
from collage.cli.arrays import fill_inputs
imported = time.perf_counter()
module = collage.load(sys.argv[1], verify=bool(int(sys.argv[2])))
loaded = time.perf_counter()
inputs = fill_inputs(module.program.inputs, {}, np.random.default_rng(0))
begin = time.perf_counter()
module.run(inputs)
first = time.perf_counter() - begin
print(json.dumps({"import_s": imported - start, "load_s": loaded - imported, "first_run_s": first}), flush=True)
sys.stdin.readline()  # until both have run
memory = dict.fromkeys(("Rss", "Pss", "Private_Clean", "Private_Dirty", "Shared_Clean"), 0)
for line in open("/proc/self/smaps_rollup"):
    name, _, rest = line.partition(":")
    if name in memory:
        memory[name] = int(rest.split()[0]) * 1024
print(json.dumps(memory), flush=True)
sys.stdin.readline()
"""


def load_in_processes(file: Path, processes: int, *, verify: bool) -> dict[str, Any]:
    """Seconds to load and for the first run of each process, and then their memory in bytes while all are alive."""
    command = [sys.executable, "-c", _CHILD, str(file.resolve()), str(int(verify))]
    running, times = [], []
    try:
        for _ in range(processes):
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            running.append(child)
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise CollageError(f"a process that loads {file} failed; see above.")
            times.append({name: round(value, 3) for name, value in json.loads(line).items()})
        memory = []
        for child in running:
            assert child.stdin is not None
            assert child.stdout is not None
            print(file=child.stdin, flush=True)
            memory.append(json.loads(child.stdout.readline()))
    finally:
        for child in running:
            child.kill()
            child.communicate()
    return {"verify": verify, "times": times, "memory": memory}


def shared_against_own(file: Path, seconds: float) -> dict[str, Any]:
    """Median microseconds of a run with weights in the mapped file and in memory of the process, in turns."""
    modules = {"shared": load_one(file), "own": load_one(file, share=False)}
    inputs = made_up(modules["own"], 0)
    samples: dict[str, list[float]] = {name: [] for name in modules}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, module in modules.items():
            for _ in range(5):
                start = time.perf_counter_ns()
                module.run(inputs)
                samples[name].append((time.perf_counter_ns() - start) / 1e3)
    return {name: round(float(np.median(each)), 1) for name, each in samples.items()}
