"""The contenders that take part: one process for each, of which one runs at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from scripts.lib.serving.contender import MissingError, Setup
from scripts.lib.serving.process import ContenderError, ContenderProcess
from scripts.lib.serving.record import Served
from scripts.lib.serving.trace import Arrival
from scripts.lib.studies.each import say

OURS, REQUEST_LEVEL = "collage", "request-level"
STATIC = "whole-batches", "shortest-first"
"""Request-level scheduling whose answers come together, so that there is no time between tokens."""
DEFAULTS = " at its defaults"
"""The end of the name of a contender that has its own choice of precision."""


@dataclass
class Field:
    """The contenders that run, and why the others do not: ``missing`` were never there, and ``failed`` are gone."""

    running: dict[str, ContenderProcess] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def serve(self, name: str, arrivals: Sequence[Arrival], limit_s: float) -> list[Served] | None:
        """Have a contender serve a trace; None where it fails, and it takes no further part then."""
        if name not in self.running:
            return None
        try:
            return self.running[name].serve(arrivals, limit_s)
        except (ContenderError, MissingError) as error:
            say(str(error))
            self.failed[name] = str(error)
            self.running.pop(name).close()
            return None


@contextmanager
def opened(names: Sequence[str], pythons: Mapping[str, Path], setup: Setup, own: Path) -> Iterator[Field]:
    """Open the contenders, each with its interpreter of Python, or with ``own``. Those not installed are skipped."""
    found = Field()
    try:
        for name in names:
            peer = name.removesuffix(DEFAULTS)
            wanted = replace(setup, defaults=name != peer)
            try:
                found.running[name] = ContenderProcess(peer, pythons.get(peer, own), wanted)
            except (MissingError, ContenderError) as error:
                say(f"{name} is left out: {error}")
                found.missing[name] = str(error)
        yield found
    finally:
        for each in found.running.values():
            each.close()
