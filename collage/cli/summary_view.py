"""The view of a module file: each module in it, and what else the file holds."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from collage.module.file import Summary
from collage.report.show import size
from collage.report.show_terminal import report_view
from collage.runtime.inputs import shapes_text


def summary_view(summary: Summary) -> RenderableType:
    """Show each module of a file, under its shapes where there are several."""
    stored = [f"the original model, {size(summary.model_bytes)}, is in the file for guarded regions"]
    more = [Text(text) for text in stored if summary.model_bytes]
    if not summary.shaped:
        return Group(report_view(*summary.first), *more)
    parts: list[RenderableType] = []
    for report, program in summary.modules:
        parts += [Text(f"shapes {shapes_text(program)}", style="bold"), report_view(report, program), Text()]
    others = "run on ONNX Runtime, with one warning" if summary.fallback else "are errors"
    return Group(*parts, Text(f"other shapes {others}"), *more)
