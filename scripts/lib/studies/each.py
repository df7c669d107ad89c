"""Running a study on each model, with messages on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collage.core.progress import Progress
from collage.errors import CollageError
from collage.report.progress_display import display
from scripts.lib.studies.compiled import Options

INTERRUPTED = 130

Study = Callable[[Path, Options, Callable[[Progress], None]], dict[str, Any]]


def each(models: Sequence[Path], options: Options, study: Study) -> tuple[int, list[dict[str, Any]]]:
    """Run the study on each model; exit status and results.

    A model that fails does not stop the others. After Ctrl-C the results so far are returned.
    """
    results: list[dict[str, Any]] = []
    status = 0
    for model in models:
        say(str(model))
        try:
            with display(True) as show:
                results.append(study(model, options, show))
        except CollageError as error:
            say(f"error: {model}: {error}")
            status = 1
        except KeyboardInterrupt:
            say("interrupted; measurements made so far are kept")
            return INTERRUPTED, results
    return status, results


def say(line: str) -> None:
    """Write a line to stderr that begins with the script's name."""
    print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr, flush=True)
