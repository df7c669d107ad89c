"""Compile real models, compare every output with its reference, and print what was measured and placed.

Without arguments: the nine `light_*` model-zoo networks that the onnx package carries, against the reference
outputs beside them. With paths of ONNX models: against ONNX Runtime on the original model, three random inputs
each. Every model is compiled twice; the second compile must measure nothing. Exit 1 when anything is off.

    scripts/models --out models && scripts/check_models models/*.onnx
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import collage
from collage.frontend.model import import_model
from collage.frontend.random_inputs import random_inputs
from scripts.lib import parser_of
from scripts.lib.errors import largest, scaled_error
from scripts.lib.light_models import FOLDER, reference_run

TOLERANCE = 1e-4
"""The largest allowed error, relative to the output's largest absolute value."""

Runs = list[tuple[dict[str, Any], list[Any]]]
"""Sets of inputs, and the outputs that they must give."""


def reference_runs(path: Path) -> Runs:
    """Three sets of random inputs, and ONNX Runtime's outputs."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = import_model(path)
    runs = []
    for seed in range(3):
        arrays = random_inputs(model, np.random.default_rng(100 + seed))
        inputs = dict(zip(model.input_names, arrays, strict=True))
        runs.append((inputs, session.run(None, inputs)))
    return runs


def check(path: Path, runs: Runs, database: str | None, backends: list[str] | None) -> bool:
    """Compile the model twice, run it, compare, and print one line of results."""
    options: dict[str, Any] = {"db": database, "backends": backends, "progress": False}
    first = collage.compile(path, **options)
    module = collage.compile(path, **options)
    worst = largest(
        scaled_error(actual, reference)
        for inputs, expected in runs
        for actual, reference in zip(module.run(inputs).values(), expected, strict=True)
    )
    report, seconds = module.report, first.report.compile_s
    right = worst <= TOLERANCE and report.measurements_made == 0
    mix = ", ".join(f"{n}x {name}" for name, n in Counter(r.backend for r in module.program.launches).items())
    print(
        f"{'ok  ' if right else 'FAIL'} {path.stem:24} error {worst:8.1e}  "
        f"measured {first.report.measurements_made:4} then {report.measurements_made}  "
        f"compile {seconds:6.1f} s then {report.compile_s:5.1f} s  "
        f"{report.measured_us / 1000:8.2f} ms (predicted {report.predicted_us / 1000:.2f})  {mix}",
        flush=True,
    )
    return right


def main() -> int:
    """Run the command line. Returns the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--only", default="", help="of the light models, those with this in the name")
    parser.add_argument("--db", help="measurement database (default: in the user's cache folder)")
    parser.add_argument("--backends", help="comma-separated; default: all that are available")
    given = parser.parse_args()
    backends = given.backends.split(",") if given.backends else None
    light = [] if given.models else sorted(FOLDER.glob(f"light_*{given.only}*.onnx"))
    results = [
        check(path, [reference_run(path)] if light else reference_runs(path), given.db, backends)
        for path in light or given.models
    ]
    return 0 if results and all(results) else 1
