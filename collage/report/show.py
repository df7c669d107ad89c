"""A report for people: its facts and regions as text, and as HTML with a picture of the launch list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from collage.backends.base import VIEW
from collage.graph.magnitudes import LIMIT
from collage.report.report import CandidateReport, GraphLevelReport, Report
from collage.runtime.inputs import shapes_text
from collage.schedule.program import Program
from collage.schedule.schedule import TEAM, concurrency, critical_path_us

_SCHEDULES = {"list": "by measured cost", "nimble": "Nimble's, folded", "opara": "Opara's, folded"}
MARK = "~"
"""Marks a region whose algorithm reassociates."""
_MOST_OPS = 6
_MOST_OPAQUE = 5
_OPEN_UP_TO = 30
_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a6fbe", "#8c8c2a")
"""Okabe and Ito's colours, which colour-blind readers can tell apart, and two others."""
GUARDED = "*"
"""Marks the backend of a region that is right on finite numbers only."""
_VIEW_COLOUR = "#9a9a9a"


@dataclass(frozen=True)
class Row:
    """A line of the placement table; ``share`` is the cost over the sum of all regions' costs (0 to 1).

    ``stream`` is the number of the stream, or "team" where all threads work on the region. ``mark`` has ``MARK`` where
    the region's algorithm reassociates, and ``GUARDED`` where its kernel is right on ordinary numbers only.
    """

    number: int
    backend: str
    ops: str
    nodes: str
    layout: str
    stream: str
    cost_us: float
    share: float
    mark: str = ""

    @property
    def where(self) -> str:
        """The backend with its mark."""
        return f"{self.backend} {self.mark}" if self.mark else self.backend


def rows(program: Program) -> list[Row]:
    """The regions in launch order, numbered as in ``show --json``; views that launch nothing are left out."""
    total = sum(region.cost_us for region in program.regions)
    launched = set(program.executed)
    return [
        Row(
            number,
            region.backend,
            shorten_ops(region.ops),
            shorten_nodes(region.sources),
            region.layout,
            str(region.stream) if region.threads < program.threads else "team",
            region.cost_us,
            region.cost_us / total if total > 0 else 0.0,
            MARK * region.reassociates + GUARDED * region.finite_only,
        )
        for number, region in enumerate(program.regions)
        if region in launched
    ]


def marked(program: Program) -> str:
    """A line that explains the mark of regions that reassociate, or "" where there are none."""
    count = sum(region.reassociates for region in program.executed)
    if not count:
        return ""
    what = "1 region reassociates" if count == 1 else f"{count} regions reassociate"
    return f"{MARK} {what} (Winograd's or Strassen's algorithm; `--exact` does without: docs/numerics.md)"


def free_views(program: Program) -> int:
    """How many regions are views that share their input's buffer and launch nothing."""
    return len(program.regions) - len(program.executed)


def facts(report: Report, program: Program) -> list[tuple[str, str]]:
    """Header lines, each a label and a text."""
    found = [("model", report.model), ("target", report.target)]
    found.append(("measured", f"{duration(report.measured_us)} for the whole (median)"))
    together = "by its schedule" if program.ordered.schedule.count else "as the sum of the parts"
    predicted = f"{duration(report.predicted_us)} {together}"
    if report.predicted_us > 0:
        predicted += f"; measured is {report.measured_us / report.predicted_us:.2f}x that"
    found.append(("predicted", predicted))
    found.append(
        (
            "max error",
            f"{report.max_abs_error:.2g} absolute, {report.relative_error:.2g} of the outputs' scale",
        )
    )
    if program.ordered.schedule.count:
        found.append(
            ("streams", f"{_SCHEDULES.get(report.schedule, report.schedule)}: {_concurrency(program)}")
        )
    if report.finalists:
        found.append(("finalists", "; ".join(_finalists(report.finalists))))
    if report.graph_level is not None:
        found.append(("graph level", _graph_level(report.graph_level)))
    if program.is_guarded:
        found.append(("guards", _guards(program)))
    found.append(("arena", _arena(report)))
    made = report.measurements_made
    found.append(("measurements", str(made) if made else "none made: all were known"))
    found.append(("search", f"{report.search_s:.2f} s of {report.compile_s:.1f} s in all"))
    if report.versions:
        found.append(
            ("libraries", ", ".join(f"{name} {text}".strip() for name, text in report.versions.items()))
        )
    opaque = list(report.opaque.items())
    found += [("not converted", f"{name}: {reason}") for name, reason in opaque[:_MOST_OPAQUE]]
    if len(opaque) > _MOST_OPAQUE:
        found.append(("not converted", f"and {len(opaque) - _MOST_OPAQUE} ONNX nodes more"))
    found += [("note", note) for note in report.notes]
    return found


def _guards(program: Program) -> str:
    count = sum(region.finite_only for region in program.executed)
    scans = sum(len(region.scans) for region in program.launches)
    regions = f"{count} regions ({GUARDED}) are" if count != 1 else f"{count} region ({GUARDED}) is"
    return (
        f"{regions} right on finite numbers only: {scans} scan{'s' if scans != 1 else ''} a run; calls with NaN, "
        f"infinities or magnitudes above {LIMIT:.0e} run on ONNX Runtime, with one warning"
    )


def _arena(report: Report) -> str:
    text, bound, values = size(report.arena_bytes), report.arena_lower_bound_bytes, report.value_bytes
    if bound:
        text += (
            f", {report.arena_bytes / bound:.2f}x the lower bound of {size(bound)} (the most alive at once)"
        )
    return f"{text}; all values take {size(values)}" if values else text


def _concurrency(program: Program) -> str:
    ordered, costs = program.ordered, [region.cost_us for region in program.launches]
    whole = sum(stream == TEAM for stream in ordered.schedule.streams)
    degree = concurrency(ordered.dag, ordered.schedule, costs)
    return (
        f"{len(costs) - whole} launches on {ordered.schedule.count} streams, {whole} on the whole team; "
        f"{len(ordered.events)} event{'' if len(ordered.events) == 1 else 's'}; "
        f"{degree:.2f} launches at a time; critical path {duration(critical_path_us(ordered.dag, costs))} of "
        f"{duration(sum(costs))} in all"
    )


def _graph_level(found: GraphLevelReport) -> str:
    best = (
        f"{1 / found.times:.3f}x as fast as the op level"
        if found.times < 1
        else "nothing faster than the op level"
    )
    return (
        f"{best}, after {found.trials} placements of {found.genes} genes in {found.seconds:.0f} s "
        f"({found.generations} generations; {found.ended})"
    )


def _finalists(finalists: Mapping[str, Mapping[str, float]]) -> list[str]:
    ordered = sorted(finalists.items(), key=lambda item: item[1]["median_us"])
    best = ordered[0][1]["median_us"]
    return [
        f"{name} {duration(timing['median_us'])}"
        + (f" ({timing['median_us'] / best:.2f}x)" if timing["median_us"] > best > 0 else "")
        for name, timing in ordered
    ]


def rejected(candidates: Iterable[CandidateReport]) -> list[tuple[str, str, int, str]]:
    """Groups of candidates without a cost: backend, kind of reason, how many, and the most frequent full reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in candidates:
        if each.reason:
            kind = each.reason.partition(":")[0]
            groups.setdefault((each.backend, kind), []).append(each.reason)
    return [
        (backend, kind, len(reasons), Counter(reasons).most_common(1)[0][0])
        for (backend, kind), reasons in sorted(groups.items())
    ]


def shorten_ops(ops: Sequence[str], most: int = _MOST_OPS) -> str:
    """Names of operators, as in ``conv2d + add + relu``; counts of the most frequent ones where there are many."""
    if len(ops) <= most:
        return " + ".join(ops)
    counts = Counter(ops).most_common()
    named = counts[: most - 2]
    rest = sum(count for _, count in counts[most - 2 :])
    text = ", ".join(f"{count} {op}" for op, count in named)
    return f"{len(ops)} operators: {text}" + (f", {rest} more" if rest else "")


def shorten_nodes(names: Sequence[str]) -> str:
    """Names of ONNX nodes; where there are many, the first, the last and their number."""
    known = [name or "(unnamed)" for name in names]
    if len(known) <= 3:
        return ", ".join(known)
    return f"{known[0]} … {known[-1]} ({len(known)})"


def duration(us: float) -> str:
    """A time in microseconds as text, in a suitable unit."""
    if us < 1000:
        return f"{us:.1f} us"
    return f"{us / 1e3:.3f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def size(nbytes: float) -> str:
    """A number of bytes as text, in a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def as_html(report: Report, program: Program) -> str:
    """The report as a piece of HTML that needs no other file; notebooks show it."""
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
    """A whole HTML document with the modules of a file, each under its shapes where there are several."""
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
    """A bar for each launch, from left to right in launch order, as wide as its share of the cost."""
    bars = []
    left = 0.0
    for row in rows(program):
        width = row.share * _WIDTH
        title = f"#{row.number} {row.backend}: {row.ops}\n{row.cost_us:.1f} us, {row.share:.1%}\n{row.nodes}"
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
        f'<td><i style="background:{colours[row.backend]}"></i>{escape(row.where)}</td>'
        f"<td>{escape(row.ops)}</td><td>{escape(row.nodes)}</td>"
        f'<td class="n">{row.cost_us:.1f}</td><td class="n">{row.share:.1%}</td></tr>'
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
