"""Processes that find a GPU: stand-ins for NVIDIA's libraries, which compute on the CPU, are first on their paths."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).parent / "cuda_standin"
FILES = {
    "libcuda.so.1": "driver.cpp",
    "libcublasLt.so.13": "cublas.cpp",
    "libcudnn.so.9": "cudnn.cpp",
    "libnvidia-ml.so.1": "nvml.cpp",
}
COMMAND = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread"]
BUILT_VARIABLE = "COLLAGE_STANDIN_BUILT"
"""Names the folder of what is compiled once in a run of the tests, for all its processes."""


@dataclass(frozen=True)
class Gpu:
    """A folder with the stand-ins' libraries, and folders of Python packages that stand in, too."""

    folder: Path
    packages: tuple[str, ...] = ("packages",)

    @staticmethod
    def build(folder: Path, *libraries: str) -> Gpu:
        """Compile the stand-in for the driver, and those for other ``libraries``, such as ``libcublasLt.so.13``."""
        for name in ("libcuda.so.1", *libraries):
            (folder / name).hardlink_to(_compiled(name))
        return Gpu(folder)

    def environment(self, **settings: str) -> Mapping[str, str]:
        """The environment of a process that finds the stand-ins."""
        paths = [
            *(str(SOURCES / each) for each in self.packages),
            str(ROOT),
            os.environ.get("PYTHONPATH", ""),
        ]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": f"{self.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "PYTHONPATH": ":".join(filter(None, paths)),
            "COLLAGE_STANDIN_CODE": str(_folder("code")),
            **settings,
        }

    def run(self, code: str, *arguments: str, **settings: str) -> str:
        """What Python prints that runs the code with these arguments. It must not fail."""
        done = self.attempt(code, *arguments, **settings)
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    def attempt(self, code: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """The same, whether it fails or not."""
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(**settings),
        )


def _folder(name: str) -> Path:
    """A folder of what this run of the tests has compiled."""
    found = Path(os.environ[BUILT_VARIABLE]) / name
    found.mkdir(parents=True, exist_ok=True)
    return found


def _compiled(name: str) -> Path:
    """The stand-in for a library. Two processes may compile it at once, and then one of them is kept."""
    library = _folder("libraries") / name
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as own:
            made = Path(own) / name
            command = [*COMMAND, f"-Wl,-soname,{name}", "-o", str(made), str(SOURCES / FILES[name]), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert not done.returncode, done.stderr
            made.replace(library)
    return library
