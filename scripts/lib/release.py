"""Build the wheels and the source distribution, and try each wheel in environments of its own.

Wheels are for glibc 2.28 and have the kernels for AVX2 and AVX-512. The compiler is Zig's, from PyPI.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]
_TOOLS = ("ziglang==0.17.*", "auditwheel>=6,<7", "build>=1,<2")
_GLIBC = "2.28"
_PLATFORM = "manylinux_2_28_x86_64"
_LIBRARIES = ("_call", "_core", "_kernels", "_kernels_avx2", "_search")
_VERSIONS = ("3.10", "3.11", "3.12", "3.13")
_MODEL = """
import sys
import onnx
model = onnx.load(sys.argv[1])
model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
onnx.save(model, sys.argv[2])
"""
_LOADED = """
import sys, time
began = time.perf_counter()
import collage
module = collage.load(sys.argv[1])
took = time.perf_counter() - began
import numpy as np
x = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
y = next(iter(module.run({next(iter(module.inputs)): x}).values()))
from_onnx = {"tvm", "onnx", "openvino", "deap", "networkx"} & sys.modules.keys()
assert not from_onnx, from_onnx
began = time.perf_counter()
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[2])
other = time.perf_counter() - began
wanted = session.run(None, {session.get_inputs()[0].name: x})[0]
assert np.abs(y - wanted).max() < 1e-4, np.abs(y - wanted).max()
print(took, other)
"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--python", "pythons", multiple=True, help="An interpreter; by default one of each supported version.")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "dist", help="The folder of the artefacts.")
@click.option("--check/--no-check", default=True, help="Try each wheel in two new environments.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there.")
def main(pythons: tuple[str, ...], out: Path, check: bool, file: Path | None) -> None:
    """Build wheels and a source distribution into a folder, check them, and name them.

    \b
    Examples:
      scripts/release
      scripts/release --python python3.12 --out /tmp/dist --no-check
    """
    found = [*pythons] or [each for each in map(_interpreter, _VERSIONS) if each]
    if not found:
        raise click.ClickException(f"there is no Python {_VERSIONS[0]} to {_VERSIONS[-1]}: name one with --python.")
    out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="collage-release-") as folder:
        tools = _environment(sys.executable, Path(folder) / "tools", *_TOOLS)
        source = Path(folder) / "source"
        _run("git", "clone", "-q", ROOT, source)
        _run(tools, "-m", "build", "-q", "--sdist", "-o", out, source)
        for python in found:
            wheel, seconds = _built(python, source, out, tools)
            _say(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, built in {seconds:.0f} s")
            _verified(wheel, tools)
            figures[wheel.name] = {"bytes": wheel.stat().st_size, "build_s": round(seconds, 1)}
            if check:
                tried = _tried(python, wheel, Path(folder))
                figures[wheel.name] |= tried
                _say(f"  {json.dumps(tried)}")
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")
    for each in sorted(out.glob("collage_compiler-*")):
        _say(str(each))


def _interpreter(version: str) -> str:
    """The path of an interpreter of that version, or "". Some that are found on the path do not run."""
    named = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for each in filter(None, named):
        done = subprocess.run([str(each), "-c", "import venv, ensurepip"], capture_output=True, check=False)
        if not done.returncode:
            return str(each)
    return ""


def _built(python: str, source: Path, out: Path, tools: Path) -> tuple[Path, float]:
    """The wheel for an interpreter, and the seconds that it took."""
    began = time.perf_counter()
    zig = f"{tools} -m ziglang"
    compilers = {
        name: f"{zig} {kind} -target x86_64-linux-gnu.{_GLIBC}" for name, kind in (("CC", "cc"), ("CXX", "c++"))
    }
    linkers = {"LDSHARED": f"{compilers['CC']} -shared", "LDCXXSHARED": f"{compilers['CXX']} -shared", "LDFLAGS": "-s"}
    with tempfile.TemporaryDirectory() as new:
        option = f"--config-settings=--build-option=--plat-name={_PLATFORM}"
        _run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", new, option, source, env=compilers | linkers)
        (wheel,) = Path(new).glob("*.whl")
        found = out / wheel.name
        shutil.move(wheel, found)
    return found, time.perf_counter() - began


def _verified(wheel: Path, tools: Path) -> None:
    """Check what is in the wheel, and which systems it is for."""
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(each).name for each in archive.namelist()]
    missing = [each for each in _LIBRARIES if not any(n.startswith(f"{each}.") and n.endswith(".so") for n in names)]
    sources = [each for each in names if each.endswith((".h", ".cpp"))]
    if missing or sources:
        raise click.ClickException(f"{wheel.name} lacks {missing} or has {sources}.")
    said = _run(tools, "-m", "auditwheel", "show", wheel)
    tag = next((word.strip('".') for word in said.split() if word.strip('".').startswith("manylinux_")), "")
    if not tag or [*map(int, tag.split("_")[1:3])] > [*map(int, _GLIBC.split("."))]:
        raise click.ClickException(f"{wheel.name} needs more than glibc {_GLIBC}: {said}")


def _tried(python: str, wheel: Path, folder: Path) -> dict[str, Any]:
    """Compile a real model with an open batch in one new environment, and run the module in another one."""
    began = time.perf_counter()
    place = folder / wheel.name
    full = _environment(python, place / "full", f"{wheel}[compile]")
    installed = time.perf_counter()
    fixed, model, module = place / "fixed.onnx", place / "resnet50.onnx", place / "resnet50.collage"
    _run(full, ROOT / "scripts" / "demo_model", fixed)
    _run(full, "-c", _MODEL, fixed, model)
    ready = time.perf_counter()
    commands = full.parent / "collage"
    _run(commands, "compile", model, "-o", module, "--budget", "20", "--db", place / "db.sqlite", "--quiet")
    compiled = time.perf_counter()
    base = _environment(python, place / "base", f"{wheel}[onednn]")
    alone = _environment(python, place / "alone", "numpy>=2.2,<3", "onnxruntime>=1.23,<1.33")
    times = [tuple(map(float, _run(base, "-c", _LOADED, module, model).split())) for _ in range(3)]
    _run(base.parent / "collage", "run", module, "--random")
    load_s, other_s = (sorted(each)[1] for each in zip(*times, strict=True))
    return {
        "install_s": round(installed - began, 1),
        "compile_s": round(compiled - ready, 1),
        "runtime_mb": round((_size(base) - _size(alone) - _onednn(base)) / 1e6, 1),
        "load_s": round(load_s, 3),
        "onnxruntime_load_s": round(other_s, 3),
    }


def _onednn(python: Path) -> int:
    """The bytes of oneDNN, which is an extra."""
    return sum(each.stat().st_size for each in python.parents[1].rglob("libdnnl*") if not each.is_symlink())


def _size(python: Path) -> int:
    """The bytes of an environment's packages."""
    packages = python.parents[1] / "lib"
    return sum(each.stat().st_size for each in packages.rglob("*") if each.is_file() and not each.is_symlink())


def _environment(python: str, folder: Path, *packages: str) -> Path:
    """The interpreter of a new environment with these packages."""
    _run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    _run(own, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    return own


def _run(*command: object, env: Mapping[str, str] | None = None) -> str:
    """The output of a command, away from the checkout."""
    words: Sequence[str] = [*map(str, command)]
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(words, capture_output=True, text=True, env={**clean, **(env or {})}, cwd="/", check=False)
    if done.returncode:
        end = (done.stderr or done.stdout).strip()[-2000:]
        raise click.ClickException(f"{' '.join(words)[:200]} ended with {done.returncode}:\n{end}")
    return done.stdout


def _say(text: str) -> None:
    click.echo(text)
