"""Checks of the installation and the machine, which say what works, what does not, and how to mend it."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from collage.core import lean_imports, surroundings
from collage.core.cpuinfo import ARITHMETIC, precisions_of
from collage.core.extras import COMPILE, DISTRIBUTION, install
from collage.errors import CollageError, DatabaseLockedError
from collage.kernel.target import cores, flags, host, usable_cores

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Check:
    """A finding, its status, and how to mend what is wrong ("" if nothing has to be done)."""

    name: str
    status: str
    detail: str
    fix: str = ""


_MODULES = {
    "apache-tvm": "tvm",
    "apache-tvm-ffi": "tvm_ffi",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
}
"""The libraries that a check imports, and the names of their modules; the package's metadata has the versions."""

_WHY = {
    "apache-tvm-ffi": "with 0.1.15 TVM's MetaSchedule segfaults",
    "apache-tvm": "other versions have another interface",
}
_IMPORT_LIMIT_S = 120
_PROBE_S = 1.0
_LOCKED_S = 2.0


def checks(database: Path | None = None) -> list[Check]:
    """The findings of all checks; ``database`` is used instead of the default one."""
    path, problem = _place_of(database)
    if path is None:
        at_path = [Check(name, FAIL, problem, "set HOME, or use --db PATH") for name in ("cache folder", "database")]
    else:
        at_path = [_cache_check(path.parent), _database_check(path)]
    return [
        *_requirement_checks(),
        _cpu_check(),
        gpu_check(),
        _native_check(),
        _load_check(),
        _quota_check(),
        _memory_check(),
        *at_path,
        _backends_check(),
    ]


def module_checks(path: Path) -> list[Check]:
    """Checks of a module file: the file, each backend that it needs, and the model that a call runs.

    Raises ModuleFileError for a damaged file, and for one of another kind.
    """
    from collage.backends.registry import builtin_registry
    from collage.module.file import damage, refuse_decoder, verified
    from collage.module.fit import fit_of
    from collage.module.load import load_file

    archive = verified(path)
    refuse_decoder(path, archive)
    registry = builtin_registry()
    with damage(path):
        fits = [fit_of(each, registry) for each in archive.manifest["modules"]]
    found = [Check("file", OK, f"{path}, made by collage {archive.manifest['collage']}")]
    again = "compile the model again here"
    for text in dict.fromkeys(text for fit in fits for text in fit.differences):
        found.append(Check("machine", WARN, text, f"{again} for the fastest mix"))
    for text in dict.fromkeys(text for fit in fits for text in fit.problems):
        found.append(Check("needs", WARN, text, f"install that, or {again}"))
    try:
        with _silent():
            module = load_file(path, registry)
    except CollageError as error:
        return [*found, Check("runs", FAIL, str(error), again)]
    modules = getattr(module, "modules", [module])
    threads, allowed = max(each.report.threads for each in modules), cores()
    if threads > allowed.usable:
        text = f"it was compiled for {threads} threads, and this process may use {allowed}: it runs more slowly"
        found.append(Check("threads", WARN, text, f"compile the model with --threads {allowed.usable}"))
    for each in modules:
        if each.instead:
            found.append(Check("runs", WARN, f"the original model, on ONNX Runtime: {each.instead}", again))
        else:
            mix = dict.fromkeys(region.backend for region in each.program.executed)
            found.append(Check("runs", OK, f"its placement, on {', '.join(mix)}"))
    return found


@contextmanager
def _silent() -> Iterator[None]:
    """Without warnings, which say what the checks say."""
    logger = logging.getLogger("collage.module.load")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


def _place_of(database: Path | None) -> tuple[Path | None, str]:
    """The given file, or else the default one; without either, why there is none."""
    from collage.measure_db.database_file import default_path

    try:
        return database or default_path(), ""
    except CollageError as error:
        return None, str(error).rpartition(". ")[0]
    except OSError as error:
        return None, f"the cache folder cannot be found: {error}"


def _requirement_checks() -> list[Check]:
    """Python and the libraries, against the versions that the installed package was tested with."""
    try:
        package = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        detail = "not installed, so the versions of libraries are not checked"
        return [Check("Collage", WARN, detail, "pip install '.[compile]' in the folder it runs from")]
    python = SpecifierSet(package.metadata["Requires-Python"])
    detail = f"{platform.python_version()} ({sys.executable})"
    known = python.contains(".".join(map(str, sys.version_info[:3])))
    found = [Check("Python", OK, detail) if known else Check("Python", FAIL, detail, f"use Python {python}")]
    needed = {each.name: each for each in map(Requirement, package.requires or ()) if each.name in _MODULES}
    return [*found, *map(_library_check, needed.values())]


def _library_check(needed: Requirement) -> Check:
    """Whether a library is installed in a tested version and can be imported."""
    name = needed.name
    exactly = f"pip install '{name}{needed.specifier}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            return Check(name, WARN, "not installed; modules run without it", f"to compile, {install(COMPILE)}")
        return Check(name, FAIL, "not installed", exactly)
    if trouble := _import_trouble(_MODULES[name]):
        return Check(name, FAIL, f"{version} cannot be imported: {trouble}", exactly)
    if not needed.specifier.contains(version, prereleases=True):
        why = _WHY.get(name, "not tested")
        return Check(name, WARN, f"{version} is outside the tested range ({why})", exactly)
    return Check(name, OK, version)


def _import_trouble(module: str) -> str:
    """The reason why the module cannot be imported, or ""; another process tries it, since the library may crash."""
    code = (
        "import runpy\n"
        f"runpy.run_path({surroundings.__file__!r})['prepare']()\n"
        f"with runpy.run_path({lean_imports.__file__!r})['lean_imports'](of_tvm=False):\n"
        f"    import {module}"
    )
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"took more than {_IMPORT_LIMIT_S} s"
    if done.returncode < 0:
        return f"it ends the process with signal {-done.returncode}"
    return (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else ""


def _cpu_check() -> Check:
    """The CPU's model and the instruction sets that decide its speed."""
    found = flags()
    device = host().device.split(", cpu family")[0]
    wanted = [name for name in ("avx2", "avx512f", *ARITHMETIC, "asimd", "sve") if name in found]
    detail = f"{device}; {', '.join(wanted) or 'no vector instructions known'}"
    if precisions := sorted(precisions_of(found)):
        detail += f"; reduced precisions: {', '.join(precisions)}"
    if found and not {"avx2", "asimd"} & found:
        return Check("CPU", WARN, detail, "a CPU with AVX2 or NEON is several times as fast")
    return Check("CPU", OK, detail)


def gpu_check() -> Check:
    """The NVIDIA GPU, or what a machine needs for one. No library of a GPU but its driver's is loaded."""
    from collage.core.cuda import NoGpuError, gpu, needed
    from collage.report.show import size

    try:
        found = gpu()
    except NoGpuError as error:
        if error.fix:
            return Check("GPU", WARN, str(error), error.fix)
        detail = f"none ({error}), and none is needed: models run on the CPU. Kernels on a GPU would take {needed()}"
        return Check("GPU", OK, detail)
    return Check("GPU", OK, f"{found.name} ({found.architecture}), {size(found.memory_bytes)}")


def _native_check() -> Check:
    """Whether native code was built. Without it kernels run on their libraries' threads, and searches take longer."""
    from collage.native.cover_walk import can_walk
    from collage.native.library import core_problem

    if problem := core_problem():
        detail, _, fix = problem.partition(". ")
        return Check("native core", WARN, detail, fix)
    if not can_walk():
        detail = "built, but not its search, so that placing a large model takes longer"
        return Check("native core", WARN, detail, "install Collage again, with a C++17 compiler")
    return Check("native core", OK, "built")


def _load_check() -> Check:
    """How busy others keep the machine now."""
    from collage.core.quiet import Machine

    cores = usable_cores()
    busy = Machine(cores).probe(_PROBE_S)
    detail = f"{cores} usable cores of {os.cpu_count() or cores}, others take {busy:.0%} of them now"
    with suppress(OSError):
        detail += f", load average {os.getloadavg()[0]:.1f}"
    return Check("load", OK, detail)


def _quota_check() -> Check:
    """The CPU time that a container leaves to this process, and what follows from it."""
    found = cores()
    if found.quota is None:
        return Check("CPU quota", OK, "none")
    detail = f"{found.quota.cores:g} cores, by {found.quota.source}"
    if not found.shared:
        return Check("CPU quota", OK, f"{detail}: no less than the cores it may run on")
    if found.quota.cores < found.usable:
        detail += ": even one thread is stopped for a part of each period"
        return Check("CPU quota", WARN, detail, "give the container at least one core")
    threads = f"{found.usable} thread{'s' if found.usable != 1 else ''}"
    return Check("CPU quota", OK, f"{detail}: compiles use {threads} unless --threads says otherwise")


def _memory_check() -> Check:
    """The memory that a measuring worker may take."""
    from collage.core.memory import spare_memory
    from collage.report.show import size

    spare = spare_memory()
    if spare is None:
        return Check("memory", OK, "unknown on this system")
    if spare < 2 << 30:
        return Check("memory", WARN, f"{size(spare)} to spare", "large models need a few GiB: free some")
    return Check("memory", OK, f"{size(spare)} to spare")


def _cache_check(folder: Path) -> Check:
    """Whether the folder of the database can be written."""
    if trouble := _folder_trouble(folder):
        return Check("cache folder", FAIL, f"{folder}: {trouble}", "make it writable, or use --db PATH")
    return Check("cache folder", OK, str(folder))


def _folder_trouble(folder: Path) -> str:
    """Why no file can be made in the folder, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _database_check(path: Path) -> Check:
    """Whether the database of measurements opens."""
    from collage.measure_db.database import Database

    try:
        if trouble := _folder_trouble(path.parent):  # SQLite makes files beside it
            return Check("database", FAIL, f"{path}: it cannot be written ({trouble})", "use --db PATH")
        if not path.exists():
            return Check("database", OK, f"none yet at {path}; the first compile makes it")
        with Database(path, busy_s=_LOCKED_S) as opened:
            stats = opened.stats()
    except DatabaseLockedError:
        return Check("database", WARN, f"{path}: another process holds it", "wait for that, or use --db PATH")
    except CollageError as error:
        return Check("database", FAIL, str(error), f"move {path} away, or use --db PATH")
    except OSError as error:  # a folder that this user may not enter
        fix = "let yourself enter its folder, or use --db PATH"
        return Check("database", FAIL, f"{path}: {error.strerror}", fix)
    count = sum(stats.measured.values())
    return Check("database", OK, f"{path}: {count} measurements")


def _backends_check() -> Check:
    """Whether all backends of installed packages can be loaded."""
    from collage.backends.registry import builtin_registry

    registry = builtin_registry()
    usable = [name for name, probe in registry.availability().items() if probe]
    if registry.problems:
        broken = "; ".join(f"{name}: {problem}" for name, problem in registry.problems.items())
        return Check("backends", WARN, f"cannot be loaded: {broken}", "upgrade or uninstall that package")
    return Check("backends", OK, f"{', '.join(usable)} (`collage backends` tells more)")
