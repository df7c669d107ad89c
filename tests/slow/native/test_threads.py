"""The native core under ThreadSanitizer: random launch lists from several threads (stress.cpp)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "helpers" / "native"
CORE = HERE.parents[2] / "collage" / "native"
LISTS = 3000  # for each of the three callers


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    program = tmp_path_factory.mktemp("stress") / "stress"
    command = [compiler, "-std=c++17", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    command += [
        "-fsanitize=thread",
        f"-I{CORE}",
        str(CORE / "core.cpp"),
        str(CORE / "tasks.cpp"),
        str(HERE / "stress.cpp"),
    ]
    built = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, timeout=120)
    if "tsan" in built.stderr:
        pytest.skip("no ThreadSanitizer")
    assert built.returncode == 0, built.stderr
    return program


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_lists_give_the_right_numbers_without_a_race(stress: Path, size: int) -> None:
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    run = subprocess.run(
        [str(stress), str(size), str(LISTS), "1"],
        capture_output=True,
        text=True,
        timeout=600,  # the machine may be busy with other tests
        env=environment,
    )
    if "unexpected memory mapping" in run.stderr:  # an older ThreadSanitizer on a kernel with more random bits
        pytest.skip("ThreadSanitizer does not start here")
    assert run.returncode == 0, run.stderr[-4000:]
