"""Showing progress on stderr: as a bar in a terminal or notebook, elsewhere as lines or not at all."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from collage.core.printable import printable
from collage.core.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

Show = Callable[[Progress], None]

_PER_SECOND = 1.0
"""The redraws in a second by rich's own thread; each takes up to 2 ms of a core that may be measuring."""
_LEAST_S = 0.1
"""The least seconds between two redraws by the work itself, which happen between measurements."""


@contextmanager
def display(enabled: bool | None) -> Iterator[Show]:
    """A context with a function that shows progress.

    With None it draws a bar in a terminal or notebook, and elsewhere shows nothing. With True it draws the bar there,
    and elsewhere writes a line for each stage of several steps. With False it shows nothing.
    """
    if enabled is False:
        yield _ignore
        return
    from rich.console import Console

    console = Console(stderr=True)
    if _can_draw(console):
        with _bar(console) as bar:
            yield _Live(bar)
    else:
        yield _Lines() if enabled else _ignore


def _can_draw(console: Console) -> bool:
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None  # without it rich would warn and draw nothing
    return console.is_terminal and not console.is_dumb_terminal


def _ignore(progress: Progress) -> None:
    pass


class _Lines:
    """Writes one line when a stage of several steps begins; stages of one step are too short for a log.

    It writes one for each new best result, too, and one for a note when it appears first in a stage.
    """

    def __init__(self) -> None:
        self._stage = ""
        self._best = ""
        self._noted = ""

    def __call__(self, progress: Progress) -> None:
        if progress.best not in ("", self._best):
            self._best = progress.best
            self._write(progress.best)
        if progress.stage != self._stage and progress.total > 1:
            self._stage = progress.stage
            self._write(f"{progress.stage} ({progress.total})")
        if progress.note and progress.stage != self._noted:
            self._noted = progress.stage
            self._write(progress.note)

    def _write(self, text: str) -> None:
        print(f"collage: {printable(text)}", file=sys.stderr, flush=True)


class _Live:
    """Draws a row for each stage; a stage ends when the next one begins."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._stage = ""
        self._task: TaskID | None = None
        self._drawn = 0.0

    def __call__(self, progress: Progress) -> None:
        fields: dict[str, Any] = {
            "completed": progress.done,
            "total": progress.total or None,
            "text": printable(" | ".join(filter(None, (progress.note, progress.best, progress.text)))),
        }
        begins = progress.stage != self._stage
        if begins or self._task is None:
            if self._task is not None:
                _finish(self._bar, self._task)
            self._stage = progress.stage
            self._task = self._bar.add_task(progress.stage, **fields)
        now = time.monotonic()
        redraw = begins or now - self._drawn >= _LEAST_S
        if redraw:
            self._drawn = now
        self._bar.update(self._task, refresh=redraw, **fields)


def _finish(bar: Bar, task: TaskID) -> None:
    found = bar.tasks[int(task)]
    total = found.total or max(found.completed, 1)
    bar.update(task, total=total, completed=total, text="")


def _bar(console: Console) -> Bar:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn(
            "{task.fields[text]}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        console=console,
        refresh_per_second=_PER_SECOND,
        transient=True,
        expand=True,
    )
