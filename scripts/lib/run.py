"""Runs the ``main`` of the script that imports this: ``scripts/NAME`` holds nothing but that import."""

import sys
from importlib import import_module
from pathlib import Path

_MODULES = {
    "bench": "bench.main",
    "fuzz": "fuzzing.main",
    "models": "workloads.main",
    "onnx_suite": "conformance.main",
}
"""The scripts whose module has another name."""

_NAME = Path(sys.argv[0]).name
sys.path[0] = str(Path(__file__).resolve().parents[2])  # instead of scripts/
sys.exit(import_module(f"scripts.lib.{_MODULES.get(_NAME, _NAME)}").main())
