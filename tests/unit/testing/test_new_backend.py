"""The package of a new backend: small files without traces of the template, and errors before anything is written."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from collage.errors import UsageError
from collage.testing.new_backend import write_package

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_the_files_have_the_names_and_few_lines(tmp_path: Path) -> None:
    paths = write_package("my_filter", tmp_path / "new", ())
    assert sum(len(path.read_text().splitlines()) for path in paths) < 150
    project = tomllib.loads((tmp_path / "new" / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["collage.backends"] == {"my_filter": "my_filter:MyFilter"}
    module = ast.parse((tmp_path / "new" / "my_filter.py").read_text())
    assert "MyFilter" in [node.name for node in module.body if isinstance(node, ast.ClassDef)]
    assert not any("$" in path.read_text() for path in paths)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("My-Filter", "lower-case identifier"),
        ("class", "lower-case identifier"),
        ("onednn", "is taken"),
        ("json", "a Python module json already"),
    ],
)
def test_bad_names(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        write_package(name, tmp_path / "new", ("onednn",))
    assert not (tmp_path / "new").exists()


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"exists already; .* --output"):
        write_package("my_filter", tmp_path, ())
    assert not [*tmp_path.iterdir()]
