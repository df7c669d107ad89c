"""The fixtures of this area's tests."""

from tests.helpers.serve.parallel.fixtures import make, qwen, ready

__all__ = ["make", "qwen", "ready"]
