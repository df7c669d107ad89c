"""The fixtures of this area's tests."""

from tests.cli.fixtures import database, folder, module, network

__all__ = ["database", "folder", "module", "network"]
