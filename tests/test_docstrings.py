"""Docstrings begin with a whole sentence, and name only what exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

import collage
from tests.test_architecture import MODULES, ROOT, layer, statements

_LEAST_WORDS = 3
_NO_BEGINNING = frozenset(
    "also and as but by either everything from here in into it its less more neither no not nothing now of on or same "
    "see so such then there they this those to up with without yes".split()
)
"""Words that begin a fragment: it lacks what they refer to."""

_FILES = {path.name for path in ROOT.rglob("*.*") if ".venv" not in path.parts}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of a file's module, classes and functions, each with its line."""
    for node in (tree, *statements(tree)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "lineno", 1), text


def fragment(text: str) -> str:
    """The first sentence of a docstring if it is a fragment, else ""."""
    first = " ".join(text.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", first)[0]
    words = sentence.split()
    whole = sentence.endswith((".", "!", "?")) and len(words) >= _LEAST_WORDS
    return "" if whole and words[0].strip(",.:").lower() not in _NO_BEGINNING else sentence


def missing(text: str) -> list[str]:
    """The modules, names and files that a docstring mentions and that do not exist."""
    found = [name for name in re.findall(r"`(collage(?:\.\w+)+)`", text) if not _exists(name)]
    files = re.findall(r"`(?:\w+/)*(\w+\.(?:py|h|cpp|md))`", text)
    return found + [name for name in files if name not in _FILES]


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or a name in one, or a public name."""
    if name in MODULES:
        return True
    home, _, last = name.rpartition(".")
    if home == "collage":
        return last in collage.__all__ or (ROOT / "collage" / last).is_dir()
    if home not in MODULES:
        return _exists(home)  # an attribute of a class
    return (
        last in _named(home) or re.search(rf"^{last}\b", MODULES[home].read_text(), re.MULTILINE) is not None
    )


@cache
def _named(module: str) -> set[str]:
    """The names that a module defines, in its classes and functions, too."""
    return {node.name for node in ast.walk(ast.parse(MODULES[module].read_text())) if hasattr(node, "name")}


@pytest.mark.parametrize("name", sorted({layer(each) for each in MODULES}))
def test_docstrings_begin_with_a_whole_sentence(name: str) -> None:
    paths = [path for module, path in MODULES.items() if layer(module) == name]
    assert paths
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {found}"
        for path in paths
        for line, text in docstrings(ast.parse(path.read_text()))
        if (found := fragment(text))
    ]
    assert not offenders, "\n".join(offenders)


def test_docstrings_name_only_what_exists() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(names)}"
        for path in MODULES.values()
        for line, text in docstrings(ast.parse(path.read_text()))
        if (names := missing(text))
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Yes.", "Yes."),
        ("Of single pixels, channels innermost.", "Of single pixels, channels innermost."),
        ("See ``Kernel.bind``. It is as there.", "See ``Kernel.bind``."),
        ("The kernel.", "The kernel."),
        ("The time of a run", "The time of a run"),
        ("The time of a run\nin microseconds (Eq. 2.2 of the paper).\n\nno more of it", ""),
        ("Make a program of a launch list, e.g. this one. And more.", ""),
    ],
)
def test_fragments_are_found(text: str, found: str) -> None:
    assert fragment(text) == found


def test_names_that_do_not_exist_are_found() -> None:
    text = "``collage.search.dp.place``, ``collage.compile`` and `core.h`, but ``collage.search.nothing``, `gone.py`."
    assert missing(text) == ["collage.search.nothing", "gone.py"]
