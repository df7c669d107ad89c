"""Plans for people: a table, and SVG pictures of the graph of stages and of the schedule with its memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from collage.graphpipe.costs import Costs
from collage.graphpipe.plan import Plan
from collage.graphpipe.schedule import Pass
from collage.graphpipe.simulate import Timeline

TITLES = ("stage", "blocks", "micro-batch", "devices", "kFkB", "in flight", "ms a sample", "GB a device", "after")
_FONT = 'font-family="sans-serif" font-size="11"'
_COLOURS = {Pass.FORWARD: "#7aa6d8", Pass.BACKWARD: "#e0a458"}
_UPDATE, _KEPT = "#8fbf8f", "#d9c7e8"
_WIDTH, _LEFT, _BAR, _MEMORY, _TOP, _FOOT, _BOX = 1100, 60, 20, 26, 18, 18, 200


def stage_rows(plan: Plan, costs: Costs) -> Iterator[tuple[str, ...]]:
    """The texts of a table of the stages, with the columns ``TITLES``."""
    for at, stage in enumerate(plan.stages):
        degree = len(stage.devices)
        names = [costs.graph.blocks[block].name for block in stage.blocks]
        yield (
            str(at),
            names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})",
            str(stage.b),
            _ranges(stage.devices),
            f"{stage.k}F{stage.k}B",
            str(stage.in_flight),
            f"{costs.tps(stage.blocks, stage.b, degree) * 1e3:.3g}",
            f"{costs.memory(stage.blocks, stage.in_flight, degree) / 1e9:.3g}",
            ", ".join(map(str, plan.predecessors[at])) or "-",
        )


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ``0-3, 6``."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and runs[-1][1] + 1 == each:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    return ", ".join(str(one) if one == other else f"{one}-{other}" for one, other in runs)


def stages_svg(plan: Plan, costs: Costs) -> str:
    """The stages as boxes, each in the column after the last one that it follows, and the edges between them."""
    column = [0] * len(plan.stages)
    for at in range(len(plan.stages)):
        column[at] = max((column[before] + 1 for before in plan.predecessors[at]), default=0)
    rows: dict[int, int] = {}
    place = {}
    for at in range(len(plan.stages)):
        rows[column[at]] = rows.get(column[at], 0) + 1
        place[at] = (20 + (_BOX + 40) * column[at], 20 + 70 * (rows[column[at]] - 1))
    parts = []
    for one, other in plan.edges:
        (x1, y1), (x2, y2) = place[one], place[other]
        bend = (x1 + _BOX + x2) / 2
        parts.append(
            f'<path d="M{x1 + _BOX},{y1 + 25} C{bend:.0f},{y1 + 25} {bend:.0f},{y2 + 25} {x2},{y2 + 25}" '
            'fill="none" stroke="#888"/>'
        )
    for (at, (x, y)), row in zip(place.items(), stage_rows(plan, costs), strict=True):
        title = f"{at}: {row[1]}"
        parts.append(f'<rect x="{x}" y="{y}" width="{_BOX}" height="50" rx="5" fill="#eef3f9" stroke="#456"/>')
        parts.append(_text(x + 6, y + 20, title if len(title) < 25 else title[:23] + "…"))
        parts.append(_text(x + 6, y + 38, f"b={row[2]}, {row[4]}, devices {row[3]}"))
    return _svg(40 + (_BOX + 40) * (max(column) + 1), 20 + 70 * max(rows.values()), parts)


def timeline_svg(plan: Plan, costs: Costs, timeline: Timeline) -> str:
    """The passes of each stage over time, with all-reduce and update at the end, and below the memory of its devices.

    The largest memory of a device is as high as its row.
    """
    whole = timeline.iteration_s
    scale = (_WIDTH - _LEFT - 10) / whole
    height = _BAR + _MEMORY + 14
    parts = [*_legend(), *_axis(whole, scale, 10 + _TOP + height * len(plan.stages))]
    most = max(costs.memory(each.blocks, each.in_flight, len(each.devices)) for each in plan.stages)
    for at, (stage, spans) in enumerate(zip(plan.stages, timeline.spans, strict=True)):
        top = 10 + _TOP + at * height
        parts.append(_text(4, top + 14, f"stage {at}"))
        for span in spans:
            x, width = _LEFT + span.start_s * scale, (span.end_s - span.start_s) * scale
            parts.append(
                f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_BAR}" fill="{_COLOURS[span.action.kind]}" '
                f'stroke="#fff" stroke-width="0.5"><title>{span.action}: {span.start_s * 1e3:.3f} to '
                f"{span.end_s * 1e3:.3f} ms</title></rect>"
            )
            if width > 18:
                parts.append(_text(x + 2, top + 14, str(span.action.index)))
        last, end = spans[-1].end_s, timeline.ends_s[at]
        parts.append(
            f'<rect x="{_LEFT + last * scale:.2f}" y="{top}" width="{(end - last) * scale:.2f}" height="{_BAR}" '
            f'fill="{_UPDATE}"><title>all-reduce and update: {(end - last) * 1e3:.3f} ms</title></rect>'
        )
        degree = len(stage.devices)
        state = costs.memory(stage.blocks, 0, degree)
        sample = costs.memory(stage.blocks, degree, degree) - state
        steps = [(0.0, state)]
        in_flight = 0
        for span in spans:
            forward = span.action.kind is Pass.FORWARD
            in_flight += stage.b if forward else -stage.b
            steps.append((span.start_s if forward else span.end_s, state + sample * in_flight / degree))
        bottom = top + _BAR + 4 + _MEMORY
        points = [f"{_LEFT:.2f},{bottom}"]
        before = state
        for moment, size in [*steps, (whole, steps[-1][1])]:
            x = _LEFT + moment * scale
            points += (f"{x:.2f},{bottom - _MEMORY * each / most:.2f}" for each in (before, size))
            before = size
        points.append(f"{_LEFT + whole * scale:.2f},{bottom}")
        peak = max(size for _, size in steps)
        parts.append(
            f'<polygon points="{" ".join(points)}" fill="{_KEPT}"><title>{peak / 1e9:.3g} of '
            f"{costs.cluster.memory_bytes / 1e9:.3g} GB</title></polygon>"
        )
        parts.append(_text(4, bottom - 8, f"{peak / 1e9:.3g} GB"))
    return _svg(_WIDTH, 10 + _TOP + height * len(plan.stages) + _FOOT, parts)


def _legend() -> Iterator[str]:
    colours = {"forward": _COLOURS[Pass.FORWARD], "backward": _COLOURS[Pass.BACKWARD], "all-reduce, update": _UPDATE}
    x = float(_LEFT)
    for text, colour in (colours | {"memory of a device": _KEPT}).items():
        yield f'<rect x="{x:.1f}" y="6" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 16, 16, text)
        x += 40 + 6.2 * len(text)


def _axis(whole: float, scale: float, y: float) -> Iterator[str]:
    """About eight round moments, in milliseconds."""
    step = 10.0 ** math.floor(math.log10(whole / 8))
    step *= next(each for each in (1, 2, 5, 10) if whole / (step * each) <= 10)
    for number in range(int(whole / step) + 1):
        x = _LEFT + number * step * scale
        yield f'<path d="M{x:.2f},{y} v4" stroke="#999"/>'
        yield _text(x + 2, y + 13, f"{number * step * 1e3:.4g}{'' if number else ' ms'}")


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {_FONT}>{escape(text)}</text>'


def _svg(width: int, height: int, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )
