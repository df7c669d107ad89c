"""Running a model whose tail one engine runs: first the launches, if there are any, then the engine.

The engine has no arena and no binding; values of any type go in and out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from collage.backends.base import Session
from collage.errors import CollageError
from collage.runtime.executor import Executor
from collage.runtime.turns import Turns
from collage.schedule.tail import Tail


class TailExecutor:
    """The engine with the tail loaded, and what runs before it. One run at a time; callers take turns."""

    def __init__(self, head: Executor, tail: Tail, session: Session) -> None:
        """``head`` belongs to it from now on."""
        self._head = head
        self._tail = tail
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
        tail, program = self._tail, self._head.program
        values = dict(zip([port.name for port in tail.inputs], inputs, strict=True))
        with self._turns:
            made = self._head.run_in_place([values[port.name] for port in program.inputs])
            values.update(zip([port.name for port in program.outputs], made, strict=True))
            self._head.make_way()
            given = self._session.run([values[name] for name in tail.reads])
            outputs = dict(zip(tail.writes, given, strict=True))
            return [
                outputs[port.name] if port.name in outputs else values[port.name].copy()
                for port in tail.outputs
            ]

    def clone(self) -> TailExecutor:
        """Itself: the engine, which takes the callers in turn, is one."""
        return self
