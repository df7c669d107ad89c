"""The fixtures of this area's tests."""

from tests.helpers.cli.fixtures import database, folder, module, network

__all__ = ["database", "folder", "module", "network"]
