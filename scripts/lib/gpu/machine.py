"""What machine and which libraries the results are of."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from typing import Any

_PACKAGES = (
    *("apache-tvm", "apache-tvm-ffi", "torch", "triton", "nvidia-cublas", "nvidia-cudnn-cu13"),
    *("nvidia-cudnn-frontend", "nvidia-cuda-nvrtc", "cuda-bindings", "numpy", "onnx", "onnxruntime"),
)
_CLOCKS = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,memory.used"


def machine() -> dict[str, Any]:
    """The GPU, its driver and clocks, and the versions of libraries."""
    from collage.core.cuda import gpu

    found = gpu()
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    return {
        "gpu": found.name,
        "architecture": found.architecture,
        "cuda": ".".join(map(str, found.driver)),
        "memory_mib": found.memory_bytes >> 20,
        "clocks": clocks(),
        "python": platform.python_version(),
        "versions": versions,
    }


def clocks() -> dict[str, str]:
    """What nvidia-smi says now, by its names; empty where it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = done.stdout.splitlines()[0].split(",") if done.stdout else []
    return dict(zip(_CLOCKS.split(","), map(str.strip, values), strict=False))
