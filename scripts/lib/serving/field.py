"""The contenders that take part: one process for each, of which one runs at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from scripts.lib.serving.contender import MissingError, Setup
from scripts.lib.serving.process import ContenderError, ContenderProcess
from scripts.lib.serving.record import Served
from scripts.lib.serving.trace import Arrival
from scripts.lib.studies.each import say


@dataclass
class Field:
    """The contenders that run, and why the others do not: ``missing`` were never there, and ``failed`` are gone."""

    running: dict[str, ContenderProcess] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def serve(self, name: str, arrivals: Sequence[Arrival]) -> list[Served] | None:
        """Have a contender serve a trace. None if it fails, after which it takes no further part."""
        if name not in self.running:
            return None
        try:
            return self.running[name].serve(arrivals)
        except (ContenderError, MissingError) as error:
            say(str(error))
            self.failed[name] = str(error)
            self.running.pop(name).close()
            return None


@contextmanager
def opened(names: Sequence[str], setup: Setup) -> Iterator[Field]:
    """Open the contenders. Those that are not installed are left out."""
    found = Field()
    try:
        for name in names:
            try:
                found.running[name] = ContenderProcess(name, setup)
            except (MissingError, ContenderError) as error:
                say(f"{name} is left out: {error}")
                found.missing[name] = str(error)
        yield found
    finally:
        for each in found.running.values():
            each.close()
