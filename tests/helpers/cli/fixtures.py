"""A small network as an ONNX file, and compiled, once for all tests of the command line."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.helpers.cli.helpers import succeeds
from tests.helpers.models import elementwise_net


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="session")
def database(folder: Path) -> Path:
    return folder / "measurements.sqlite"


@pytest.fixture(scope="session")
def network(folder: Path) -> Path:
    path = folder / "net.onnx"
    onnx.save_model(elementwise_net(), str(path))
    return path


@pytest.fixture(scope="session")
def module(folder: Path, network: Path, database: Path) -> Path:
    path = folder / "net.collage"
    succeeds("compile", network, "-o", path, "--db", database, "--quiet")
    return path
