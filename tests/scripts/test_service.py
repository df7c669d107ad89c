"""Small runs of the measurements of `scripts/bench service`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import collage
from collage.module.shaped import ShapedModule
from collage.native import core_problem
from tests.models import elementwise_net

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(bool(core_problem()), reason=core_problem())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("service")
    module = collage.compile(elementwise_net(), backends=["tvm"], db=folder / "db.sqlite", progress=False)
    module.save(folder / "net.collage")
    return folder / "net.collage"


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "bench"), "service", *map(str, arguments)]
    return subprocess.run(command, timeout=300, capture_output=True, text=True)


def test_all_of_it(file: Path) -> None:
    done = bench(file, "--seconds", "1", "--calls", "500", "--threads", "3", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["verify"] for each in found["loading"]] == [False, True]
    assert all(len(each["times"]) == len(each["memory"]) == 2 for each in found["loading"])
    assert [each["clones"] for each in found["callers"]] == [False, True]
    for each in found["callers"]:
        assert each["wrong"] == 0
        assert len(each["calls"]) == 3
        assert min(each["calls"]) > 0
    assert found["many"]["calls"] == 500
    assert set(found["weights"]) == {"shared", "own"}
    assert "most/fewest" in done.stderr


def test_overhead() -> None:
    done = bench("--overhead", "--json")
    assert done.returncode == 0, done.stderr
    for each in json.loads(done.stdout)["overhead"]:
        assert each["kernels"] == 10
        medians = [way["median_us"] for way in each["ways"].values()]
        assert np.all(np.array(medians) > 0)


def test_usage(file: Path, tmp_path: Path) -> None:
    done = bench()
    assert done.returncode == 2
    assert "give a module file" in done.stderr
    shapes = tmp_path / "shapes.collage"
    found = collage.load(file)
    assert isinstance(found, collage.CompiledModule)
    ShapedModule([found], None).save(shapes)
    done = bench(shapes, "--seconds", "1")
    assert done.returncode in (1, 2)
    assert "several sets of shapes" in done.stderr.splitlines()[-1]
    done = bench("nothing.collage", "--seconds", "1")
    assert done.returncode == 1
    assert "no such file" in done.stderr.splitlines()[-1]
