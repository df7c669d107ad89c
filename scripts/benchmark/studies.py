"""What the scripts share: a study run on each model, and what they say meanwhile."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collage.core.progress import Progress
from collage.errors import CollageError
from collage.report.progress_display import display

from .compiled import Options

INTERRUPTED = 130

Study = Callable[[Path, Options, Callable[[Progress], None]], dict[str, Any]]


def each(models: Sequence[Path], options: Options, study: Study) -> tuple[int, list[dict[str, Any]]]:
    """The study on each model: one that fails costs itself only, and Ctrl-C leaves what is finished."""
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


def positive(text: str) -> int:
    """A number for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def say(line: str) -> None:
    """A line on stderr, with the script's name before it."""
    print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr, flush=True)
