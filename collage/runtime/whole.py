"""Running a model whole in one engine: no arena, no binding; values of any type go in and out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from collage.backends.base import Session
from collage.errors import CollageError
from collage.runtime.turns import Turns


class WholeExecutor:
    """One engine with the model loaded. One run at a time; callers take turns."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turns = Turns()
        self._process = os.getpid()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs, in order, as values of the caller's own. Raises whatever the engine does."""
        if self._process != os.getpid():
            raise CollageError(
                "this module was loaded before the process forked, and the engine's threads did not come along: load "
                "it again in the child, or start the child by spawning."
            )
        with self._turns:
            return self._session.run(inputs)

    def clone(self) -> WholeExecutor:
        """Itself: there is nothing but the engine."""
        return self
