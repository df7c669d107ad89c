"""The fixtures of this area's tests."""

from tests.helpers.measure_db.fixtures import database, model

__all__ = ["database", "model"]
