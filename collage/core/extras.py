"""The extras of the distribution: what a part of Collage needs besides what loads and runs modules."""

from __future__ import annotations

from importlib.util import find_spec

from collage.errors import UsageError

DISTRIBUTION = "collage-compiler"
"""The name that pip knows Collage by."""
COMPILE = "compile"
_COMPILERS = ("tvm", "tvm_ffi", "onnx", "deap", "networkx", "cloudpickle")


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def of_compiler(error: ImportError) -> str:
    """The message for a missing package that compiling needs; "" for any other failure of an import."""
    name = (error.name or "").partition(".")[0]
    return f"this needs {name}, which is not installed: {install(COMPILE)}." if name in _COMPILERS else ""


def need_compiler() -> None:
    """Raise UsageError if packages are missing that compiling needs, and running modules does not."""
    missing = [name for name in _COMPILERS if find_spec(name) is None]
    if missing:
        raise UsageError(f"compiling needs {', '.join(missing)}, which are not installed: {install(COMPILE)}.")
