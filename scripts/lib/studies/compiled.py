"""A model that is compiled for a study: the module's file, its report and its program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage import api
from collage.core.progress import Progress
from collage.report.report import Report
from collage.schedule.program import Program


@dataclass(frozen=True)
class Options:
    """The options of all studies: threads, rounds of the race, database, and TVM's trials."""

    threads: int
    rounds: int
    db: str | None = None
    tune_trials: int = 0


@dataclass(frozen=True)
class Compiled:
    """A compiled model. Contenders load ``file``; the module itself is not kept, so that they have its memory."""

    file: Path
    report: Report
    program: Program

    @property
    def mix(self) -> dict[str, int]:
        """The number of launches of each backend."""
        return dict(Counter(region.backend for region in self.program.launches).most_common())


def compile_to(
    file: Path, model: Path, options: Options, show: Callable[[Progress], None], **arguments: Any
) -> Compiled:
    """Compile ``model`` and save it to ``file``; ``arguments`` go to ``collage.compile``. Raises what that raises."""
    module = api.compile(
        model,
        threads=options.threads,
        tune_trials=options.tune_trials,
        db=options.db,
        progress=show,
        **arguments,
    )
    module.save(file)
    return Compiled(file, module.report, module.program)
