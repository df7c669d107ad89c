"""A report for the terminal, as renderables of the library rich."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from collage.backends.base import LAYOUT
from collage.report.compare import Comparison, Side
from collage.report.report import CandidateReport, Report
from collage.report.show import (
    TableRow,
    details,
    duration,
    facts,
    free_views,
    headline,
    marked,
    rejected,
    rows,
    shares,
    shorten_nodes,
    slowest,
)
from collage.schedule.program import Program

_LONGEST_REASON = 160
_MOST_NAMES = 4
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
_MOST_ROWS = 24
"""A table of more regions than that shows the slowest ones."""


def table(
    titles: Sequence[str],
    content: Iterable[Sequence[str | Text]],
    *,
    right: Collection[str] = (),
    folded: Mapping[str, int | None] | None = None,
) -> Table:
    """A table without lines, whose columns ``right`` are adjusted to that side. Empty titles are not shown.

    Long texts take several lines: of all columns, or of those in ``folded``, which share the width by these numbers.
    """
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    found.show_header = any(titles)
    for title in titles:
        found.add_column(
            title,
            justify="right" if title in right else "left",
            no_wrap=folded is not None and title not in folded,
            overflow="fold",
            ratio=(folded or {}).get(title),
        )
    for row in content:
        found.add_row(*(Text(each) if isinstance(each, str) else each for each in row))
    return found


def report_view(report: Report, program: Program, *, detailed: bool = False) -> RenderableType:
    """The headline, what everybody reads, and the placement; ``detailed`` adds how the compile went."""
    threads = f"{report.threads} thread{'s' if report.threads != 1 else ''}"
    first = Text(f"{report.model}  {headline(report)} ({threads})", style="bold")
    parts: list[RenderableType] = [first, facts_table(facts(report, program))]
    if detailed:
        parts += [Text(), facts_table(details(report, program))]
    found = rows(program)
    if len(found) > 1:
        parts += [Text(), shares_table(program)]
    shown = found if detailed or len(found) <= _MOST_ROWS else slowest(found)
    parts += [Text(), placement_table(shown)]
    if len(shown) < len(found):
        parts.append(Text(f"the {len(shown)} slowest of {len(found)} kernels; --details shows all", style="dim"))
    if views := free_views(program):
        parts.append(Text(f"and {views} view{'s' if views != 1 else ''}, for which no kernel runs", style="dim"))
    if note := marked(program):
        parts.append(Text(note, style="dim"))
    if detailed and any(each.reason for each in report.candidates):
        parts += [Text(), rejection_table(report.candidates)]
    return Group(*parts)


def facts_table(found: Iterable[tuple[str, str]]) -> RenderableType:
    """Lines as a table of labels and texts."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for label, text in found:
        grid.add_row(Text(label), Text(text))
    return grid


def shares_table(program: Program) -> RenderableType:
    """The table of the backends, with their numbers of kernels and their times."""
    content = (
        (
            "conversions" if each.backend == LAYOUT else each.backend,
            str(each.kernels),
            *(("-", "-") if not each.us else (duration(each.us), f"{each.share:.0%}")),
        )
        for each in shares(program)
    )
    return table(("backend", "kernels", "time", "share"), content, right=("kernels", "time", "share"))


def placement_table(found: Sequence[TableRow]) -> RenderableType:
    """The table of the regions. Columns that would say nothing are left out."""
    columns = {
        "#": [str(row.number) for row in found],
        "backend": [row.where for row in found],
        "operators": [row.ops for row in found],
        "ONNX nodes": [row.nodes for row in found],
        "layout": [row.layout for row in found],
        "precision": [row.precision for row in found],
        "error": [row.cost_in_error for row in found],
        "stream": [row.stream for row in found],
        "us": [row.cost for row in found],
        "share": [row.percent for row in found],
    }
    for name, usual in {"layout": "plain", "precision": "", "error": "", "stream": "team"}.items():
        if set(columns[name]) <= {usual}:
            del columns[name]
    return table(
        [*columns],
        zip(*columns.values(), strict=True),
        right=("#", "error", "stream", "us", "share"),
        folded={"operators": 3, "ONNX nodes": 3, "layout": 1},
    )


def rejection_table(candidates: Sequence[CandidateReport]) -> RenderableType:
    """The table of candidates without a cost, by backend and kind of reason."""
    content = (
        (backend, kind, str(count), _cut(example.partition(":")[2].strip() or example))
        for backend, kind, count, example in rejected(candidates)
    )
    example = "the most frequent one"
    return table(("rejected by", "reason", "count", example), content, right=("count",), folded={example: 1})


def comparison_view(found: Comparison, names: tuple[str, str], headlines: tuple[str, str]) -> RenderableType:
    """The view of two modules beside each other: headlines, totals, and the differences with what they gain or cost."""
    parts: list[RenderableType] = [Text(f"{name}: {line}") for name, line in zip(names, headlines, strict=True)]
    parts += [Text(), table(("", *names), found.totals, right=names), Text()]
    if found.unlike:
        return Group(*parts, Text(found.unlike))
    if not found.differences:
        return Group(*parts, Text("all operators run on the same kernels"))
    content = (
        (shorten_nodes(each.sources or each.ops), _on(each.one), _on(each.other), f"{-each.gained_us:+.1f}")
        for each in found.differences
    )
    folded = {"ONNX nodes": 2, names[0]: 3, names[1]: 3}
    return Group(*parts, table(("ONNX nodes", *names, "us"), content, right=("us",), folded=folded))


def _on(side: Side) -> str:
    how = "; ".join(side.how)
    return " ".join(filter(None, (" + ".join(side.backends), how and f"({how})", duration(side.us))))


def explanation(entries: Sequence[tuple[int, Mapping[str, Any]]], *, detailed: bool = False) -> RenderableType:
    """The view of entries of ``Report.explain``: each candidate of a node, with its cost or why it has none.

    Candidates without a cost are counted by their reasons, unless it is ``detailed``.
    """
    parts: list[RenderableType] = []
    for node, entry in entries:
        origin = f" ({entry['source']})" if entry["source"] else ""
        parts.append(Text(f"node {node}: {entry['op']}{origin} on {entry['backend']}", style="bold"))
        listed: list[Mapping[str, Any]] = []
        others: list[Mapping[str, Any]] = []
        for each in sorted(entry["candidates"], key=_by_verdict):
            timed = "cost_us" in each or each["verdict"] == "chosen"
            (listed if detailed or timed else others).append(each)
        found = table(
            ("backend", "pattern", "layout", "us", "in place", "verdict"),
            [_candidate(each) for each in listed] or [("no candidate", *[""] * 5)],
            right=("us", "in place"),
            folded={"pattern": 3, "layout": 2, "verdict": 4},
        )
        if listed and listed[0]["verdict"] == "chosen":
            found.rows[0].style = "bold"
        parts += [found, Text()]
        if others:
            parts += [_by_reason(others), Text()]
    return Group(*parts)


def _by_reason(candidates: Iterable[Mapping[str, Any]]) -> Table:
    """The table of verdicts with the numbers of candidates. Verdicts that differ in their numbers are one."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for each in candidates:
        groups.setdefault(_NUMBER.sub("#", each["verdict"]), []).append(each)
    content = []
    for group in sorted(groups.values(), key=len, reverse=True):
        least = min(group, key=lambda each: each.get("loss_us", math.inf))
        backends = ", ".join(dict.fromkeys(each["backend"] for each in group))
        more = " (the least of them)" if len({each["verdict"] for each in group}) > 1 else ""
        content.append((str(len(group)), backends, least["verdict"] + more))
    return table(("others", "backends", "verdict"), content, right=("others",), folded={"backends": 1, "verdict": 3})


def _candidate(entry: Mapping[str, Any]) -> tuple[str, ...]:
    cost, noise, in_network = (entry.get(key) for key in ("cost_us", "noise_us", "in_network_us"))
    return (
        entry["backend"],
        _short_pattern(entry["pattern"]),
        "; ".join(filter(None, (entry["layout"], entry["split"]))),
        "" if cost is None else f"{cost:.1f}" + (f" ±{noise:.1f}" if noise else ""),
        "" if in_network is None else f"{in_network:.1f}",
        entry["verdict"],
    )


def _short_pattern(pattern: str) -> str:
    """The pattern without the class of its rule, and of many operators the first ones and the last."""
    ops = pattern.rpartition("Rule: ")[2].split("+")
    return "+".join(ops) if len(ops) <= _MOST_NAMES else f"{'+'.join(ops[: _MOST_NAMES - 1])}+…+{ops[-1]} ({len(ops)})"


def _by_verdict(entry: Mapping[str, Any]) -> tuple[bool, bool, int, float]:
    """A sort key: the chosen candidate comes first, then those with a cost, by size and cost."""
    cost = entry.get("cost_us")
    return entry["verdict"] != "chosen", cost is None, entry["operators"], cost or 0.0


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
