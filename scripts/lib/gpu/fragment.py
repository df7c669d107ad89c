"""A part's results as a JSON file, which is whole after each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.lib.json_file import write_json


@dataclass
class Fragment:
    """Results by the names of steps, with the seconds that each has taken."""

    path: Path
    found: dict[str, Any] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Do the work, and write its result, or what it has raised. The next steps go on in any case."""
        start = time.monotonic()
        self.found["doing"] = name
        self._write()
        try:
            result = work()
        except Exception as error:  # libraries raise anything, and the other steps are worth having
            self.found[name] = {"failed": f"{type(error).__name__}: {error}"[:2000]}
            result = None
        else:
            self.found[name] = result
        self._seconds[name] = round(time.monotonic() - start, 2)
        del self.found["doing"]
        self._write()
        return result

    def _write(self) -> None:
        write_json(self.path, {**self.found, "seconds": self._seconds})
