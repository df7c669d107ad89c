"""A clock for tests of timing."""

from __future__ import annotations

from collections.abc import Callable


class Counted:
    """A call that counts itself."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self.run()


class FakeClock:
    """A clock that only kernels and its own reading move, in nanoseconds."""

    def __init__(self, reading_ns: int = 50) -> None:
        self.now = 0.0
        self.reading_ns = reading_ns

    def __call__(self) -> int:
        self.now += self.reading_ns
        return int(self.now)

    def kernel(self, us: Callable[[], float] | float) -> Counted:
        """A kernel of that duration."""

        def run() -> None:
            self.now += 1e3 * (us() if callable(us) else us)

        return Counted(run)
