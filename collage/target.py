"""The machine a model is compiled for: device model, instruction sets, threads."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_RELEVANT = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512", "amx", "asimd", "sve", "bf16")


@dataclass(frozen=True)
class Target:
    """A CPU: its model name, a hash of the instruction sets that matter, and the threads a run may use."""

    device: str
    flags: str
    threads: int

    def __str__(self) -> str:
        return f"{self.device} ({self.flags}), {self.threads} thread{'s' if self.threads != 1 else ''}"

    @property
    def hardware(self) -> str:
        """Device and flags, without threads: part of the measurements' key."""
        return f"{self.device} {self.flags}"


def usable_cores() -> int:
    """Cores this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def host(threads: int | None = None) -> Target:
    """The machine this process runs on; ``threads`` defaults to the cores it may use."""
    device, flags = _cpu()
    return Target(device, flags, threads or usable_cores())


@cache
def _cpu() -> tuple[str, str]:
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, text = line.partition(":")
            fields.setdefault(name.strip(), text.strip())
    except OSError:
        pass
    names = [fields.get("model name") or platform.processor() or platform.machine()]
    names += [f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    flags = sorted(f for f in fields.get("flags", "").split() if f.startswith(_RELEVANT))
    return ", ".join(names), hashlib.sha256(" ".join(flags).encode()).hexdigest()[:8]
