"""A stand-in for NVRTC, which compiles CUDA C++ for the CPU, for the stand-in of the driver to load.

It runs in processes whose PYTHONPATH begins with its folder. ``COLLAGE_STANDIN_CODE`` is a folder where compiled code
is kept, by the hash of its source, and the headers in a form that the compiler need not parse.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import subprocess
import tempfile
from enum import Enum
from pathlib import Path
from typing import Any

_HEADERS = Path(__file__).resolve().parents[4] / "cuda_threads"
_COMMAND = ["g++", "-std=c++17", "-O0", "-w", "-shared", "-fPIC", "-ffp-contract=off"]
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)')


class nvrtcResult(Enum):  # noqa: N801
    NVRTC_SUCCESS = 0
    NVRTC_ERROR_COMPILATION = 6


_OK = nvrtcResult.NVRTC_SUCCESS


class _Program:
    def __init__(self, source: str) -> None:
        self.source, self.code, self.log = source, b"", b""


def nvrtcVersion() -> tuple[Any, int, int]:  # noqa: N802
    return _OK, 13, 5


def nvrtcCreateProgram(source: bytes, *_: Any) -> tuple[Any, Any]:  # noqa: N802
    return _OK, _Program(source.decode())


def nvrtcCompileProgram(program: _Program, *_: Any) -> tuple[Any]:  # noqa: N802
    wrappers = ['#include "kernels.h"', program.source]
    for name, parameters in dict(_KERNEL.findall(program.source)).items():
        wrappers.append(
            f"static void run_{name}(void** given) {{ collage::apply({name}, given); }}\n"
            f'extern "C" void launch_{name}(void** given, const unsigned* grid, const unsigned* threads) {{\n'
            f"  collage::launch(run_{name}, given, grid, threads);\n}}\n"
            f'extern "C" {{ unsigned parameters_{name} = {len(parameters.split(","))}; }}'
        )
    text = "\n".join(wrappers)
    folder = Path(os.environ.get("COLLAGE_STANDIN_CODE") or tempfile.mkdtemp())
    library = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.so"
    if not library.exists():
        headers = _parsed_headers(folder)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            source, made = Path(own) / "kernels.cpp", Path(own) / "kernels.so"
            source.write_text(text)
            command = [*_COMMAND, f"-I{headers}", f"-I{_HEADERS}", "-o", str(made), str(source)]
            done = subprocess.run(command, capture_output=True, check=False)
            if done.returncode:
                program.log = done.stderr
                return (nvrtcResult.NVRTC_ERROR_COMPILATION,)
            made.rename(library)
    code = library.read_bytes()
    program.code = b"CPU!" + struct.pack("<Q", len(code)) + code
    return (_OK,)


def _parsed_headers(folder: Path) -> Path:
    """A folder that the compiler looks for ``kernels.h`` in first, and finds it parsed: that is most of its work."""
    parsed = folder / "headers" / "kernels.h.gch"
    if not parsed.exists():
        parsed.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            made = Path(own) / parsed.name
            command = [*_COMMAND, "-x", "c++-header", "-o", str(made), str(_HEADERS / "kernels.h")]
            subprocess.run(command, capture_output=True, check=True)
            made.rename(parsed)
    return parsed.parent


def nvrtcGetCUBINSize(program: _Program) -> tuple[Any, int]:  # noqa: N802
    return _OK, len(program.code)


def nvrtcGetCUBIN(program: _Program, into: bytearray) -> tuple[Any]:  # noqa: N802
    into[:] = program.code
    return (_OK,)


def nvrtcGetProgramLogSize(program: _Program) -> tuple[Any, int]:  # noqa: N802
    return _OK, len(program.log)


def nvrtcGetProgramLog(program: _Program, into: bytearray) -> tuple[Any]:  # noqa: N802
    into[:] = program.log
    return (_OK,)


def nvrtcDestroyProgram(program: _Program) -> tuple[Any]:  # noqa: N802
    return (_OK,)
