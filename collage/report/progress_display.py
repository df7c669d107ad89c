"""Showing progress: as a bar in a terminal, as one output of a notebook, elsewhere as lines or not at all."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from collage.core.printable import printable
from collage.core.progress import Progress

if TYPE_CHECKING:
    from IPython.display import DisplayHandle
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

Show = Callable[[Progress], None]

_PER_SECOND = 1.0
"""The redraws in a second by rich's own thread; each takes up to 2 ms of a core that may be measuring."""
_NOTEBOOK_S = 0.5
"""The least seconds between two messages to a notebook about one stage."""
_LEAST_S = 0.1
"""The least seconds between two redraws by the work itself, which happen between measurements."""


@contextmanager
def display(enabled: bool | None) -> Iterator[Show]:
    """A context with a function that shows progress.

    With None it draws a bar in a terminal, or one output in a notebook, and elsewhere shows nothing. With True it draws
    these there, and elsewhere writes a line for each stage of several steps. With False it shows nothing.
    """
    if enabled is False:
        yield _ignore
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        notebook = _Notebook()
        yield notebook
        notebook.finish()
    elif console.is_terminal and not console.is_dumb_terminal:
        with _bar(console) as bar:
            yield _Live(bar)
    else:
        yield _Lines() if enabled else _ignore


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


class _Notebook:
    """Shows the stage and the best result in one output of a notebook's cell, by IPython alone: rich needs ipywidgets.

    The output stays, with the last best result, when the work is done.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._shown: DisplayHandle | None = None
        self._last: Progress | None = None
        self._drawn = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        begins = self._last is None or progress.stage != self._last.stage
        self._last = progress
        if begins or now - self._drawn >= _NOTEBOOK_S:
            self._drawn = now
            done = f" {progress.done}/{progress.total}" if progress.total > 1 else ""
            texts = (
                f"{progress.stage}{done}",
                f"{now - self._begin:.0f} s",
                progress.note,
                progress.best,
                progress.text,
            )
            self._show(" | ".join(filter(None, texts)), progress.done / progress.total if progress.total else None)

    def finish(self) -> None:
        """Show that the work is done."""
        if self._last is not None:
            texts = ("done", f"{time.monotonic() - self._begin:.0f} s", self._last.best)
            self._show(" | ".join(filter(None, texts)), 1.0)

    def _show(self, text: str, share: float | None) -> None:
        from IPython.display import display as show

        bar = "" if share is None else f'<progress value="{min(share, 1.0):.3f}" style="width:12em"></progress> '
        content = {"text/plain": printable(text), "text/html": f"{bar}<code>{escape(printable(text))}</code>"}
        if self._shown is None:
            self._shown = show(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)


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
