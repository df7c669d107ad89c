"""Importing TVM in processes of our own."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

_PROGRAM = """
import gc, sys
from collage.core.lean_imports import lean_imports

with lean_imports():
    import tvm
    assert not gc.isenabled()
assert gc.isenabled() and "torch" not in sys.modules
print(tvm.runtime.tensor([1.0]).numpy()[0])
"""


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


_FUNCTIONS = """
print(sum(len(vars(each)) for name, each in sorted(sys.modules.items()) if name.endswith("_ffi_api")))
from tvm_ffi import registry
print(registry.list_global_func_names.__module__)
"""


def test_tvm_has_the_functions_that_it_has_otherwise() -> None:
    found = run("import sys, tvm" + _FUNCTIONS)
    assert found.endswith("tvm_ffi.registry\n")
    assert run(_PROGRAM + _FUNCTIONS) == "1.0\n" + found


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_pytorch_can_be_imported_afterwards() -> None:
    assert run(_PROGRAM + "import torch; print(torch.ones(1).item())") == "1.0\n1.0\n"
