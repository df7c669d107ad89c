"""Printing results: one JSON object, or tables under a line that names the machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collage.cli.console import print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

_PIPE_WIDTH = 200


def show(found: Mapping[str, Any], view: Sequence[RenderableType], *, as_json: bool) -> None:
    """Print ``found`` as JSON, or else its target and the tables of ``view`` where there are any."""
    if as_json:
        print_json(found)
    elif view:
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False)
        for part in (found["target"], *view):
            console.print(part)


def head(threads: int, **more: Any) -> dict[str, Any]:
    """The first entries of each JSON object: the machine, the threads, and other options of the study."""
    from collage.kernel.target import host

    return {"target": str(host(threads)), "threads": threads, **more}
