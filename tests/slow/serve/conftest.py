"""The fixtures of this area's tests."""

from tests.helpers.serve.fixtures import folder, needs_server, server

__all__ = ["folder", "needs_server", "server"]
