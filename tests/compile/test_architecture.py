"""The house as docs/architecture.md has it: imports point down, no circles, optional libraries stay optional."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import collage

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "architecture.md"
OPTIONAL = (
    *("catboost", "cuda", "jinja2", "joblib", "lightgbm", "matplotlib", "mkl", "onednn", "openai", "openvino"),
    *("pandas", "prometheus_client", "pydantic", "ray", "skl2onnx", "sklearn", "starlette", "tensorrt", "tokenizers"),
    *("huggingface_hub", "torch", "uvicorn", "xgboost"),
)
EXTRAS_AT_IMPORT = "collage.windtunnel"
"""Its classes are subclasses of those of its extra. No other layer imports it."""
LOOSE = {"__init__", "__main__", "_version", "api", "onnx_backend", "errors"}


def layers() -> list[str]:
    """Names of the layers, from top to bottom."""
    return re.findall(r"^\| `(\w+)` \|", TABLE.read_text(), re.MULTILINE)


def modules() -> dict[str, Path]:
    """All modules of the package by dotted name."""
    found = {}
    for path in (ROOT / "collage").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def statements(tree: ast.AST, skipped: Callable[[ast.AST], bool] = lambda _: False) -> Iterator[ast.AST]:
    """All statements in a tree, except those that are skipped and what is in them. An import is in no expression."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)) and not skipped(node):
            yield node
            yield from statements(node, skipped)


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, wherever in it."""
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES:
                    yield inner
                elif node.module in MODULES:
                    yield str(node.module)


@cache
def imports() -> list[tuple[str, str]]:
    """Modules, and what each imports. It parses all files, so it is no constant: each process of pytest's, which
    imports all tests, would make that.
    """
    return [(name, other) for name, path in sorted(MODULES.items()) for other in imported(path) if other != name]


def layer(module: str) -> str:
    """The layer of a module, "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def test_every_layer_is_in_the_table_once() -> None:
    here = {layer(name) for name in MODULES} - {"", "__main__"}
    assert sorted(layers()) == sorted(here)


def test_imports_point_down() -> None:
    rank = {name: number for number, name in enumerate(layers())}
    rank |= {"": -1, "__main__": -1}  # the package loads its public names lazily from all layers
    upward = [
        f"{name} imports {other}"
        for name, other in imports()
        if layer(name) != layer(other) and rank[layer(name)] > rank[layer(other)]
    ]
    assert not upward


def test_there_are_no_circles() -> None:
    graph = nx.DiGraph([pair for pair in imports() if layer(pair[0])])
    assert [sorted(each) for each in nx.strongly_connected_components(graph) if len(each) > 1] == []


def test_no_loose_modules() -> None:
    assert {path.stem for path in (ROOT / "collage").glob("*.py")} == LOOSE


def test_public_names() -> None:
    assert sorted(collage.__all__) == collage.__all__
    assert {name for name in collage.__all__ if getattr(collage, name) is None} == set()
    assert set(collage.__all__) == {*collage._HOME_OF, "CollageError", "__version__"}
    for name, home in collage._HOME_OF.items():
        assert getattr(collage, name).__module__ in (home, "collage.kernel.kernel") or callable(getattr(collage, name))


@pytest.fixture(scope="module")
def at_import() -> list[tuple[str, str]]:
    """Modules of ours, and what each imports when it is imported itself, up to the first dot."""
    found = []
    for module, path in MODULES.items():
        for node in statements(ast.parse(path.read_text()), _lazy):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            found += [(module, each.split(".")[0]) for each in names]
    return found


@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_libraries_are_imported_in_functions(name: str, at_import: list[tuple[str, str]]) -> None:
    """No module imports one when it is imported itself: the extras need not be there."""
    assert len({module for module, _ in at_import}) > len(MODULES) / 2
    found = [module for module, imported in at_import if imported == name]
    assert [module for module in found if not module.startswith(EXTRAS_AT_IMPORT)] == []


def test_nothing_imports_windtunnel() -> None:
    users = {name for name, other in imports() if layer(other) == "windtunnel" and layer(name) != "windtunnel"}
    assert users <= {name for name in users if layer(name) == "cli"}


def _lazy(node: ast.AST) -> bool:
    """Whether what is in it does not run when its module is imported."""
    for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return for_types or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def test_every_module_can_be_imported_without_the_extras() -> None:
    """In a process where the optional libraries cannot be found."""
    code = f"""
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Missing())
for name in {sorted(n for n in MODULES if n != "collage.__main__" and not n.startswith(EXTRAS_AT_IMPORT))!r}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert not done.returncode, done.stderr
