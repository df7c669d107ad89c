"""Running a study on one model after another: each result is told and written as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from collage.core.progress import Progress
from collage.report.progress_display import display
from scripts.lib.json_text import json_text
from scripts.lib.studies.each import INTERRUPTED, say

Item = TypeVar("Item")
Study: TypeAlias = Callable[[Item, Callable[[Progress], None]], dict[str, Any]]

PROBLEM = "problem"
"""What a result has in the place of all others where the study has failed."""


def one_by_one(
    items: Mapping[str, Item],
    study: Study[Item],
    told: Callable[[Mapping[str, Any]], Sequence[str]],
    results: Path | None = None,
) -> tuple[int, list[dict[str, Any]]]:
    """Exit status, and the results of all models by name, also those that failed, with the reason.

    ``told`` gives the lines that tell a result, and ``results`` is a file that gets a line for each. After Ctrl-C the
    results so far are returned.
    """
    found: list[dict[str, Any]] = []
    status = 0
    for name, item in items.items():
        say(name)
        try:
            with display(True) as show:
                result = study(item, show)
        except KeyboardInterrupt:
            say("interrupted; measurements made so far are kept")
            return INTERRUPTED, found
        except Exception as error:  # the other models' results must not be lost, whatever has happened
            result = {
                "model": name,
                PROBLEM: f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            }
            status = 1
        found.append(result)
        for line in [f"{name}: {result[PROBLEM]}"] if PROBLEM in result else told(result):
            say(line)
        if results is not None:
            with results.open("a") as file:
                file.write(json_text(result) + "\n")
    return status, found
