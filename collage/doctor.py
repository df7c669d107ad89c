"""Checks of the installation and the machine: what works, what does not, and how to mend it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path

from collage.errors import CollageError
from collage.target import host, usable_cores

Version = tuple[int, ...]


class Status(Enum):
    """What a check found."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """A finding, and how to mend it ("" when nothing is to be done)."""

    name: str
    status: Status
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Tested:
    """A library and the versions Collage was tested with: ``least`` and up, but below ``limit``."""

    package: str
    module: str
    least: Version
    limit: Version
    required: bool = True

    @property
    def requirement(self) -> str:
        """For pip."""
        return f"'{self.package}>={_text(self.least)},<{_text(self.limit)}'"


TESTED = (
    Tested("apache-tvm", "tvm", (0, 27), (0, 28)),
    Tested("apache-tvm-ffi", "tvm_ffi", (0, 1, 14), (0, 1, 15)),
    Tested("onnx", "onnx", (1, 18), (1, 24)),
    Tested("onnxruntime", "onnxruntime", (1, 23), (1, 32)),
    Tested("openvino", "openvino", (2026, 4), (2026, 5), required=False),
)
"""The ranges of pyproject.toml; a test compares the two."""

_PYTHON: tuple[Version, Version] = ((3, 10), (3, 14))
_WHY = {
    "apache-tvm-ffi": "with 0.1.15 TVM's MetaSchedule segfaults",
    "apache-tvm": "other versions have another interface",
}
_IMPORT_LIMIT_S = 120
_BUSY = 0.5


def checks(database: Path | None = None) -> Sequence[Callable[[], Check]]:
    """All checks, each to be called; ``database`` stands for the default one."""
    return (
        python_check,
        *(_library(each) for each in TESTED),
        cpu_check,
        load_check,
        memory_check,
        lambda: cache_check(database),
        lambda: database_check(database),
        backends_check,
    )


def python_check() -> Check:
    """Whether this Python is one Collage was tested with."""
    least, limit = _PYTHON
    detail = f"{platform.python_version()} ({sys.executable})"
    if least <= sys.version_info[:2] < limit:
        return Check("Python", Status.OK, detail)
    return Check("Python", Status.FAIL, detail, f"use Python {_text(least)} or newer, below {_text(limit)}")


def _library(tested: Tested) -> Callable[[], Check]:
    return lambda: library_check(tested)


def library_check(tested: Tested) -> Check:
    """Whether a library is there, in a tested version, and can be imported (in a process of its own)."""
    bad = Status.FAIL if tested.required else Status.WARN
    install = f"pip install {tested.requirement}"
    try:
        version = metadata.version(tested.package)
    except metadata.PackageNotFoundError:
        return Check(tested.package, bad, "not installed", install)
    trouble = _import_trouble(tested.module)
    if trouble:
        return Check(tested.package, Status.FAIL, f"{version} cannot be imported: {trouble}", install)
    if not tested.least <= parse_version(version) < tested.limit:
        why = _WHY.get(tested.package, "not tested")
        return Check(tested.package, Status.WARN, f"{version} is outside the tested range ({why})", install)
    return Check(tested.package, Status.OK, version)


def parse_version(text: str) -> Version:
    """The leading numbers of a version: ``0.27.0.post1`` -> (0, 27, 0)."""
    numbers: list[int] = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _import_trouble(module: str) -> str:
    """Why the module cannot be imported, or "". A library that crashes must not take the doctor with it."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"took more than {_IMPORT_LIMIT_S} s"
    if done.returncode < 0:
        return f"it ends the process with signal {-done.returncode}"
    return (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else ""


def cpu_check() -> Check:
    """The CPU's model and the instruction sets that decide its speed."""
    found = _cpu_flags()
    device = host().device.split(", cpu family")[0]
    wanted = [
        name for name in ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve") if name in found
    ]
    detail = f"{device}; {', '.join(wanted) or 'no vector instructions known'}"
    if found and not {"avx2", "asimd"} & found:
        return Check("CPU", Status.WARN, detail, "a CPU with AVX2 or NEON is several times as fast")
    return Check("CPU", Status.OK, detail)


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(
        next((s for n, _, s in (x.partition(":") for x in lines) if n.strip() in _FLAG_LINES), "").split()
    )


_FLAG_LINES = ("flags", "Features")


def load_check() -> Check:
    """Whether other processes keep the cores busy, which makes measurements noisy."""
    cores = usable_cores()
    try:
        load = os.getloadavg()[0]
    except OSError:
        return Check("load", Status.OK, f"{cores} usable cores")
    everywhere = os.cpu_count() or cores
    detail = f"{cores} usable cores of {everywhere}, load average {load:.1f}"
    if load > _BUSY * everywhere:
        return Check(
            "load", Status.WARN, detail, "measurements get noisy: compile while the machine is quiet"
        )
    return Check("load", Status.OK, detail)


def memory_check() -> Check:
    """How much memory a measuring worker may take."""
    from collage.measure_db.machine import spare_memory
    from collage.show import size

    spare = spare_memory()
    if spare is None:
        return Check("memory", Status.OK, "unknown on this system")
    if spare < 2 << 30:
        return Check(
            "memory", Status.WARN, f"{size(spare)} to spare", "large models need a few GiB: free some"
        )
    return Check("memory", Status.OK, f"{size(spare)} to spare")


def cache_check(database: Path | None) -> Check:
    """Whether the folder of the database can be written."""
    from collage.measure_db.database import default_path

    folder = (database or default_path()).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Check(
            "cache folder", Status.FAIL, f"{folder}: {error.strerror}", "make it writable, or use --db PATH"
        )
    return Check("cache folder", Status.OK, str(folder))


def database_check(database: Path | None) -> Check:
    """Whether the database of measurements opens."""
    from collage.measure_db.database import Database, default_path

    path = database or default_path()
    if not path.exists():
        return Check("database", Status.OK, f"none yet at {path}; the first compile makes it")
    try:
        with Database(path) as opened:
            stats = opened.stats()
    except CollageError as error:
        return Check("database", Status.FAIL, str(error), f"move {path} away, or use --db PATH")
    count = sum(stats.measured.values())
    return Check("database", Status.OK, f"{path}: {count} measurements")


def backends_check() -> Check:
    """Whether all backends that packages bring can be loaded."""
    from collage.backends.registry import builtin_registry

    registry = builtin_registry()
    usable = [name for name, probe in registry.availability().items() if probe]
    if registry.problems:
        broken = "; ".join(f"{name}: {problem}" for name, problem in registry.problems.items())
        return Check(
            "backends", Status.WARN, f"cannot be loaded: {broken}", "upgrade or uninstall that package"
        )
    return Check("backends", Status.OK, f"{', '.join(usable)} (`collage backends` tells more)")


def _text(version: Version) -> str:
    return ".".join(map(str, version))
