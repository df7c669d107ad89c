"""A model of four operators, and an empty database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collage.frontend.model import Model
from collage.measure_db.database import Database
from tests.helpers.backends_for_tests import chain_model


@pytest.fixture(scope="module")
def model() -> Model:
    return chain_model()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "db.sqlite") as opened:
        yield opened
