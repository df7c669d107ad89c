"""One version of Collage in a process of its own, as ``scripts/bench versions`` starts it.

    version_child.py compile MODEL MODULE DATABASE THREADS    compiles; prints a JSON object
    version_child.py run MODULE                               prints "ready"; then, for each line "SECONDS" of stdin,
                                                              calls the module that long and prints milliseconds

Only the public interface is used, so that old versions can run it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import numpy as np

import collage


def compile_once(model: str, module: str, database: str, threads: str) -> dict[str, Any]:
    """Compile with default effort and the database ``database``; figures from the report."""
    began = time.perf_counter()
    compiled = collage.compile(model, db=database, threads=int(threads), progress=False)
    seconds = time.perf_counter() - began
    compiled.save(module)
    report = compiled.report
    regions = compiled.program.regions
    return {
        "compile_s": round(seconds, 1),
        "measured_us": round(report.measured_us, 1),
        "relative_error": report.relative_error,
        "measurements": report.measurements_made,
        "regions": len(regions),
        "guarded": sum(bool(getattr(region, "finite_only", False)) for region in regions),
        "notes": list(report.notes),
    }


def run(module: str) -> None:
    """Answer each line of standard input with the median of a burst of calls, in milliseconds."""
    loaded: Any = collage.load(module)  # other versions have other types
    call = loaded.bind()
    rng = np.random.default_rng(0)
    for array in call.inputs.values():
        floats = array.dtype.kind == "f"
        array[...] = rng.standard_normal(array.shape) if floats else rng.integers(0, 2, array.shape)
    for _ in range(5):
        call()
    print("ready", flush=True)
    for line in sys.stdin:
        end = time.perf_counter() + float(line)
        samples: list[float] = []
        call()
        while not samples or time.perf_counter() < end:
            began = time.perf_counter()
            call()
            samples.append(time.perf_counter() - began)
        print(statistics.median(samples) * 1e3, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        print(json.dumps(compile_once(*sys.argv[2:])))
    else:
        run(sys.argv[2])
