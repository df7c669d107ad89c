"""Writing results to stdout: tables, and one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from collage.core.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

_PIPE_WIDTH = 160


def print_rich(*renderables: RenderableType) -> None:
    """Print tables and texts to stdout. In a pipe they have no colours and are wide enough for most lines.

    Characters that a terminal would obey are replaced, since names and notes come from files that others wrote.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    safe = [Printable(each) for each in renderables]
    if console.is_terminal:
        console.print(*safe, sep="\n")
        return
    console.width = max(console.width, _PIPE_WIDTH)
    with console.capture() as captured:
        console.print(*safe, sep="\n")
    for line in captured.get().removesuffix("\n").split("\n"):
        click.echo(line.rstrip())  # rich fills up lines with blanks


def print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Collection[str] = (),
    wide: bool = False,
) -> None:
    """Print a table whose columns ``right`` are adjusted to that side.

    Long texts take several lines; if the table is ``wide``, those of its last column only. Empty titles are not shown.
    """
    from collage.report.show_terminal import table

    print_rich(table(titles, rows, right=right, folded={titles[-1]: 1} if wide else None))


class Printable:
    """A renderable whose texts have no characters that a terminal would obey."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for text, style, control in console.render(self._inner, options):
            yield Segment(text if control else printable(text, kept="\n"), style, control)


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may hold names from files, paths, or messages of libraries."""
    click.echo(printable(text, kept="\n"), err=err)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object. NaN and infinity, which JSON does not have, become null."""
    click.echo(json.dumps(finite(value), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """The value with None for floats that JSON does not have, NaN and infinities, also inside of lists and mappings."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [finite(each) for each in value]
    return value
