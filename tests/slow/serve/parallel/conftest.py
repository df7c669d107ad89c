"""The fixtures of this area's tests."""

from tests.serve.parallel.fixtures import make, qwen, ready

__all__ = ["make", "qwen", "ready"]
