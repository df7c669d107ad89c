"""A report as HTML, with a picture of the launch list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from collage.backends.base import VIEW
from collage.report.report import Report
from collage.report.show import facts, free_views, marked, rejected, rows
from collage.runtime.inputs import shapes_text
from collage.schedule.program import Program

_OPEN_UP_TO = 30
"""A table of more regions than that is folded up at first."""
_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a6fbe", "#8c8c2a")
"""Okabe and Ito's colours, which colour-blind readers can tell apart, and two others."""
_VIEW_COLOUR = "#9a9a9a"


def as_html(report: Report, program: Program) -> str:
    """The report as a piece of HTML that needs no other file, which notebooks can show."""
    colours = _colours(program)
    header = "".join(
        f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in facts(report, program)
    )
    return (
        f'<div class="collage-report">{_STYLE}<table class="facts">{header}</table>'
        f"{_picture(program, colours)}{_legend(program, colours)}{_table(program, colours)}"
        f"{_rejections(report)}</div>"
    )


def as_page(modules: Sequence[tuple[Report, Program]]) -> str:
    """A whole HTML document with the modules of a file, each with its shapes as a heading where there are several."""
    pieces = [as_html(report, program) for report, program in modules]
    if len(modules) > 1:
        heads = [f"<h2>{escape(shapes_text(program))}</h2>" for _, program in modules]
        pieces = [head + piece for head, piece in zip(heads, pieces, strict=True)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(modules[0][0].model)} - Collage</title></head>\n"
        f"<body>{''.join(pieces)}</body></html>\n"
    )


def _colours(program: Program) -> dict[str, str]:
    names = dict.fromkeys(region.backend for region in program.executed if region.backend != VIEW)
    found = {name: _PALETTE[position % len(_PALETTE)] for position, name in enumerate(names)}
    return {**found, VIEW: _VIEW_COLOUR}


_WIDTH = 1000.0
_HEIGHT = 56


def _picture(program: Program, colours: Mapping[str, str]) -> str:
    """A picture with a bar for each launch, from left to right in launch order, as wide as its share of the cost."""
    bars = []
    left = 0.0
    for row in rows(program):
        width = row.share * _WIDTH
        title = f"#{row.number} {row.backend}: {row.ops}\n{row.cost} us, {row.percent}\n{row.nodes}"
        bars.append(
            f'<rect x="{left:.2f}" y="0" width="{width:.2f}" height="{_HEIGHT}" '
            f'fill="{colours[row.backend]}" stroke="#fff" stroke-width="{min(0.6, width / 4):.2f}">'
            f"<title>{escape(title)}</title></rect>"
        )
        left += width
    return (
        f'<svg class="launches" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="The launch list: one bar per region, width by cost">{"".join(bars)}</svg>'
    )


def _legend(program: Program, colours: Mapping[str, str]) -> str:
    shares: dict[str, tuple[int, float]] = {}
    for row in rows(program):
        count, share = shares.get(row.backend, (0, 0.0))
        shares[row.backend] = (count + 1, share + row.share)
    items = "".join(
        f'<span><i style="background:{colours[name]}"></i>{escape(name)}: {count} '
        f"region{'s' if count != 1 else ''}, {share:.0%}</span>"
        for name, (count, share) in shares.items()
    )
    return f'<p class="legend">{items}</p>'


def _table(program: Program, colours: Mapping[str, str]) -> str:
    body = "".join(
        f"<tr><td>{row.number}</td>"
        f'<td><i style="background:{colours[row.backend]}"></i>{escape(row.where_and_how)}</td>'
        f"<td>{escape(row.ops)}</td><td>{escape(row.nodes)}</td>"
        f'<td class="n">{row.cost}</td><td class="n">{row.percent}</td></tr>'
        for row in rows(program)
    )
    views = free_views(program)
    note = f"<p>{escape(marked(program))}</p>" if marked(program) else ""
    more = f"<p>{views} views share their input's buffer and launch nothing.</p>" if views else ""
    count = len(program.executed)
    return (
        f"<details{' open' if count <= _OPEN_UP_TO else ''}><summary>{count} regions</summary>"
        '<table class="regions"><thead><tr><th>#</th><th>backend</th><th>operators</th><th>ONNX nodes</th>'
        f'<th class="n">us</th><th class="n">share</th></tr></thead><tbody>{body}</tbody></table>'
        f"{note}{more}</details>"
    )


def _rejections(report: Report) -> str:
    found = rejected(report.candidates)
    if not found:
        return ""
    body = "".join(
        f'<tr><td>{escape(backend)}</td><td>{escape(kind)}</td><td class="n">{count}</td>'
        f"<td>{escape(example)}</td></tr>"
        for backend, kind, count, example in found
    )
    return (
        "<details><summary>rejected candidates</summary>"
        '<table class="regions"><thead><tr><th>backend</th><th>reason</th><th class="n">count</th>'
        f"<th>the most frequent one</th></tr></thead><tbody>{body}</tbody></table></details>"
    )


_STYLE = """<style>
.collage-report { font: 13px/1.45 system-ui, sans-serif; max-width: 1100px }
.collage-report table { border-collapse: collapse; margin: .4em 0 }
.collage-report th, .collage-report td { text-align: left; padding: .1em .8em .1em 0; vertical-align: top }
.collage-report .facts th { font-weight: 600; white-space: nowrap }
.collage-report .regions tbody tr:nth-child(even) { background: rgba(128, 128, 128, .09) }
.collage-report .n { text-align: right; font-variant-numeric: tabular-nums }
.collage-report i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px }
.collage-report .legend span { margin-right: 1.4em; white-space: nowrap }
.collage-report svg.launches { display: block; width: 100%; height: 56px }
.collage-report summary { cursor: pointer; font-weight: 600 }
</style>"""
