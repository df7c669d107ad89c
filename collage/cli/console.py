"""Writing results to stdout: tables, and one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

_PIPE_WIDTH = 160


def print_rich(*renderables: RenderableType) -> None:
    """Print tables and texts to stdout; in a pipe without colours, and wide enough for most lines."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if console.is_terminal:
        console.print(*renderables, sep="\n")
        return
    console.width = max(console.width, _PIPE_WIDTH)
    with console.capture() as captured:
        console.print(*renderables, sep="\n")
    for line in captured.get().splitlines():
        click.echo(line.rstrip())  # rich fills up lines with blanks


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object. JSON knows neither NaN nor infinity: they become null."""
    click.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_finite(each) for each in value]
    return value
