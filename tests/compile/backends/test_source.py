"""The digest of a plug-in's source: it follows its code, and the built-in backends have none."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import collage
from collage.backends.registry import builtin_registry
from collage.backends.source_digest import keyed_version, plain_version, source_digest
from tests.helpers.models import elementwise_net

PLUGIN = """
import numpy as np

import collage


class Rule(collage.BasePatternRule):
    @staticmethod
    def op_rule(op):
        return op.name == "relu" or "only relu"


class Kernel(collage.Kernel):
    def bind(self, inputs, outputs):
        return lambda: np.maximum(inputs[0], LEAST, out=outputs[0])


class Plugin(collage.Backend):
    name = "plugin"
    kind = collage.BackendKind.LIBRARY

    def available(self):
        return collage.Availability(version="1.0")

    def sources(self, options):
        return [Rule()]

    def codegen(self, subgraph, options):
        return b""

    def load(self, artifact, options):
        return Kernel()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules are imported from, which are forgotten at the end."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def plugin(name: str) -> Any:
    """The backend of a module that is imported anew."""
    importlib.invalidate_caches()
    for each in [known for known in sys.modules if known.partition(".")[0] == name.partition(".")[0]]:
        del sys.modules[each]
    return importlib.import_module(name).Plugin()


def test_the_digest_follows_the_file(folder: Path) -> None:
    (folder / "one_file_plugin.py").write_text(f"LEAST = 0{PLUGIN}")
    first = plugin("one_file_plugin")
    keyed = keyed_version(first, "1.0, CUDA 13")
    assert keyed == f"1.0, CUDA 13, source {source_digest(type(first))}"
    assert plain_version(keyed) == "1.0, CUDA 13" and plain_version("1.0") == "1.0"
    (folder / "beside.py").write_text("")  # another module of the same folder is none of it
    assert keyed_version(plugin("one_file_plugin"), "1.0, CUDA 13") == keyed
    (folder / "one_file_plugin.py").write_text(f"LEAST = 1{PLUGIN}")
    assert keyed_version(plugin("one_file_plugin"), "1.0, CUDA 13") != keyed


def test_the_digest_follows_all_files_of_a_package(folder: Path) -> None:
    package = folder / "whole_plugin"
    (package / "kernels").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "plain": PLUGIN,
        "kernels/fast": "A = 1",
        "kernels/fast.cpp": "",
    }.items():
        (package / (name if "." in name else f"{name}.py")).write_text(text)
    digests = [source_digest(type(plugin("whole_plugin.plain")))]
    for name in ("kernels/fast.py", "kernels/fast.cpp"):
        (package / name).write_text("// 2")
        digests.append(source_digest(type(plugin("whole_plugin.plain"))))
    assert len({*digests}) == 3
    (package / "notes.txt").write_text("nothing")
    assert source_digest(type(plugin("whole_plugin.plain"))) == digests[-1]


def test_classes_of_a_notebook_are_told_apart_by_their_code() -> None:
    """They have no file. The digest is the same in each process."""

    def digest(least: int) -> str:
        notebook = ModuleType("notebook_of_mine")
        sys.modules["notebook_of_mine"] = notebook
        try:
            exec(compile(f"LEAST = 0\n{PLUGIN.replace('LEAST', str(least))}", "cell", "exec"), vars(notebook))
            return source_digest(notebook.Plugin)
        finally:
            del sys.modules["notebook_of_mine"]

    assert digest(0) == digest(0) != digest(1)
    code = "import sys; exec(sys.stdin.read(), g := {'__name__': '__main__'}); vars(sys.modules['__main__']).update(g)"
    code += "; from collage.backends.source_digest import source_digest; print(source_digest(g['Plugin']))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code], input=PLUGIN + "WORDS = lambda x: x in {'a', 'b', 'c', 'd'}\n",
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(told) == 1 and told != {"\n"}


def test_changed_code_is_measured_again(folder: Path) -> None:
    """A kernel that was wrong is rejected, and the mended one is not, although its version is the same."""
    found = {}
    for least in (1, 0, 0):
        (folder / "mended_plugin.py").write_text(f"LEAST = {least}{PLUGIN}")
        registry = collage.builtin_registry(with_entry_points=False)
        registry.register(plugin("mended_plugin"))
        module = collage.compile(
            elementwise_net(), db=folder / "db.sqlite", registry=registry, progress=False, quick=True,
            backends=["plugin", "onnxruntime"],
        )  # fmt: skip
        reasons = [c.reason for c in module.report.candidates if c.backend == "plugin"]
        found[least] = (
            [reason for reason in reasons if reason.startswith("inaccurate")],
            module.report.measurements_made,
        )
        assert module.report.versions.get("plugin", "1.0") == "1.0"
    assert found[1][0] and found[0] == ([], 0)


def test_imports_of_workers_are_modules() -> None:
    registry = builtin_registry()
    for name in registry.select():
        for module in registry[name].worker_imports:
            import_module(module)
