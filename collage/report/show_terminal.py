"""A report for the terminal, as renderables of the library rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from collage.report.report import CandidateReport, Report
from collage.report.show import facts, free_views, marked, rejected, rows
from collage.schedule.program import Program

_LONGEST_REASON = 160


def report_view(report: Report, program: Program) -> RenderableType:
    """The view of a whole report: facts, placement and the summary of rejected candidates."""
    parts: list[RenderableType] = [facts_table(report, program), Text(), placement_table(program)]
    views = free_views(program)
    if views:
        parts.append(Text(f"and {views} view{'s' if views != 1 else ''} that launch nothing", style="dim"))
    if note := marked(program):
        parts.append(Text(note, style="dim"))
    table = rejection_table(report.candidates)
    if table is not None:
        parts += [Text(), table]
    return Group(*parts)


def facts_table(report: Report, program: Program) -> RenderableType:
    """The header lines as a table of labels and texts."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, text in facts(report, program):
        table.add_row(Text(label), Text(text))
    return table


def placement_table(program: Program) -> RenderableType:
    """The table of the regions, in launch order."""
    table = plain_table()
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("backend", no_wrap=True)
    table.add_column("operators", overflow="fold", ratio=3)
    table.add_column("ONNX nodes", overflow="fold", ratio=3)
    found = rows(program)
    layouts = any(row.layout != "plain" for row in found)
    if layouts:
        table.add_column("layout", overflow="fold", ratio=1)
    reduced = any(row.precision for row in found)
    if reduced:
        table.add_column("precision", no_wrap=True)
        table.add_column("error", justify="right", no_wrap=True)
    streams = any(row.stream != "team" for row in found)
    if streams:
        table.add_column("stream", justify="right", no_wrap=True)
    table.add_column("us", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for row in found:
        table.add_row(
            str(row.number),
            Text(row.where),
            Text(row.ops),
            Text(row.nodes),
            *([Text(row.layout)] if layouts else []),
            *([Text(row.precision), Text(row.cost_in_error)] if reduced else []),
            *([Text(row.stream)] if streams else []),
            row.cost,
            row.percent,
        )
    return table


def rejection_table(candidates: Sequence[CandidateReport]) -> RenderableType | None:
    """The table of candidates without a cost, by backend and kind of reason, or None when there are none."""
    found = rejected(candidates)
    if not found:
        return None
    table = plain_table()
    table.add_column("rejected by", no_wrap=True)
    table.add_column("reason", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("the most frequent one", overflow="fold", ratio=1)
    for backend, kind, count, example in found:
        text = example.partition(":")[2].strip() or example
        table.add_row(Text(backend), Text(kind), str(count), Text(_cut(text)))
    return table


def explanation(entries: Sequence[tuple[int, Mapping[str, Any]]]) -> RenderableType:
    """The view of entries of ``Report.explain``: each candidate of a node, with its cost or why it has none."""
    parts: list[RenderableType] = []
    for node, entry in entries:
        origin = f" ({entry['source']})" if entry["source"] else ""
        parts.append(Text(f"node {node}: {entry['op']}{origin} on {entry['backend']}", style="bold"))
        table = plain_table()
        table.add_column("backend", no_wrap=True)
        table.add_column("pattern", overflow="fold", ratio=2)
        table.add_column("layout", overflow="fold", ratio=1)
        table.add_column("operators", justify="right", no_wrap=True)
        table.add_column("us", justify="right", no_wrap=True)
        table.add_column("+-", justify="right", no_wrap=True)
        table.add_column("in the network", justify="right", no_wrap=True)
        table.add_column("verdict", overflow="fold", ratio=3)
        for each in sorted(entry["candidates"], key=_by_verdict):
            times = (each.get(key) for key in ("cost_us", "noise_us", "in_network_us"))
            table.add_row(
                Text(each["backend"]),
                Text(each["pattern"]),
                Text("; ".join(filter(None, (each["layout"], each["split"])))),
                str(each["operators"]),
                *("" if us is None else f"{us:.1f}" for us in times),
                Text(each["verdict"]),
                style="bold" if each["verdict"] == "chosen" else None,
            )
        if not entry["candidates"]:
            table.add_row(Text("no candidate"), Text(""), Text(""), "", "", "", "", Text(""))
        parts += [table, Text()]
    return Group(*parts)


def plain_table() -> Table:
    """A table without lines, which is also readable in a pipe."""
    return Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)


def _by_verdict(entry: Mapping[str, Any]) -> tuple[bool, bool, int, float]:
    """A sort key: the chosen candidate comes first, then those with a cost, by size and cost."""
    cost = entry.get("cost_us")
    return entry["verdict"] != "chosen", cost is None, entry["operators"], cost or 0.0


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
