"""One server for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.serve.served import CONFIG, Served, served, write_folder

LIBRARIES = ("jinja2", "prometheus_client", "pydantic", "starlette", "tokenizers", "uvicorn")


@pytest.fixture(scope="session")
def needs_server() -> None:
    """Skip where the extra is not installed."""
    for name in LIBRARIES:
        pytest.importorskip(name, reason=f"{name} is missing: pip install 'collage-compiler[serve]'")


@pytest.fixture(scope="session")
def folder(needs_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("serve") / "model", CONFIG)


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Served]:
    with served(folder) as found:
        yield found
