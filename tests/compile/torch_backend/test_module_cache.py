"""Compiled subgraphs on disk: found by the next process, safe against several at once and against damage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collage.torch_backend import module_cache

torch = pytest.importorskip("torch")
nn = torch.nn

ROOT = Path(__file__).parents[3]

PROGRAM = """
import logging
import torch
from torch import nn
from torch._dynamo.backends import registry
from collage.torch_backend import backend, module_cache

compiled = []
usual = module_cache.compile_model
module_cache.compile_model = lambda *args, **options: compiled.append(0) or usual(*args, **options)
if "collage" not in registry.list_backends():
    registry.register_backend(backend.compile_subgraph, name="collage")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
found = torch.compile(model, backend="collage", options={"budget_s": 1})
with torch.no_grad():
    for _ in range(2):
        x = torch.randn(3, 8)
        torch.testing.assert_close(found(x), model(x), rtol=1e-4, atol=1e-5)
print("compiled", len(compiled))
"""
"""A program without a guard of its main part, as those of PyTorch's documentation are."""


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def result(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "eager mode" not in err, err
    return out.strip()


def test_processes(cache: Path) -> None:
    """Two at once compile, and leave one entry; the next one compiles and measures nothing."""
    both = [start(), start()]
    assert {result(each) for each in both} <= {"compiled 0", "compiled 1"}
    assert len([*cache.iterdir()]) == 1
    assert result(start()) == "compiled 0"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """It has an element for each compile."""
    found: list[int] = []
    usual = module_cache.compile_model

    def compile_model(*args: Any, **options: Any) -> Any:
        found.append(0)
        return usual(*args, **options)

    monkeypatch.setattr(module_cache, "compile_model", compile_model)
    return found


def run(model: Any, **options: Any) -> None:
    torch.compiler.reset()
    found = torch.compile(model, backend="collage", options=options or None)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(found(x), model(x), rtol=1e-4, atol=1e-5)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_cut, _flip, lambda path: path.write_bytes(b"")])
def test_damage(damage: Callable[[Path], None], cache: Path, compiles: list[int]) -> None:
    model = nn.Linear(8, 4).eval()
    run(model)
    (entry,) = cache.iterdir()
    damage(entry)
    run(model)
    assert len(compiles) == 2
    run(model)
    assert len(compiles) == 2 and [*cache.iterdir()] == [entry]


def test_what_makes_another_entry(cache: Path, compiles: list[int], tmp_path: Path) -> None:
    model = nn.Linear(8, 4).eval()
    run(model)
    run(model, threads=1)
    with torch.no_grad():
        model.weight.mul_(2)
    run(model)
    assert len(compiles) == 3 == len([*cache.iterdir()])
    run(model, cache=False)
    run(model, cache=str(tmp_path / "other"))
    run(model, cache=str(tmp_path / "other"))
    assert len(compiles) == 5 and len([*cache.iterdir()]) == 3


def test_a_cache_that_cannot_be_written(tmp_path: Path, compiles: list[int]) -> None:
    (tmp_path / "file").write_text("")
    run(nn.Linear(8, 4).eval(), cache=str(tmp_path / "file" / "folder"))
    assert len(compiles) == 1


def test_old_entries_go(cache: Path) -> None:
    import os

    cache.mkdir(parents=True)
    old = cache / "old.collage"
    old.write_text("")
    os.utime(old, (0, 0))
    run(nn.Linear(8, 4).eval())
    assert old not in [*cache.iterdir()]
