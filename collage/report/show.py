"""A report for people: its facts, its regions and its rejected candidates as texts, which views arrange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collage.graph.magnitudes import LIMIT
from collage.graph.storage import CUDA, HOST
from collage.report.best_so_far import FINISHED, course_words, ended_words
from collage.report.report import CandidateReport, ErrorReport, GraphLevelReport, Report
from collage.schedule.program import Program, runs_on_gpu
from collage.schedule.region import Region
from collage.schedule.schedule import TEAM, concurrency, critical_path_us

_SCHEDULES = {
    "list": "by measured cost",
    "nimble": "Nimble's, mapped to threads",
    "opara": "Opara's, mapped to threads",
}
MARK = "~"
"""The mark of a region whose algorithm reassociates."""
GUARDED = "*"
"""The mark of a region whose kernel is right on finite numbers only."""
_MOST_OPS = 6
_MOST_OPAQUE = 5


@dataclass(frozen=True)
class TableRow:
    """A line of the placement table; ``share`` is the cost over the sum of all regions' costs (0 to 1).

    ``cost_us`` is None where nothing was measured. ``stream`` is the number of the stream, "team" where all threads
    work on the region, or the device that it is on. ``mark`` has ``MARK`` where the region's algorithm reassociates,
    and ``GUARDED`` where its kernel is right on ordinary numbers only. ``precision`` is the reduced one that it
    computes in, or "", and ``error`` what that adds to the error of the outputs, as a share of their scale.
    """

    number: int
    backend: str
    ops: str
    nodes: str
    layout: str
    stream: str
    cost_us: float | None
    share: float
    mark: str = ""
    precision: str = ""
    error: float = 0.0

    @property
    def where(self) -> str:
        """The backend with its mark."""
        return f"{self.backend} {self.mark}" if self.mark else self.backend

    @property
    def where_and_how(self) -> str:
        """The backend with its mark, and the precision where it is a reduced one."""
        return f"{self.where} {self.precision}" if self.precision else self.where

    @property
    def cost(self) -> str:
        """The cost in microseconds as text, or "-" where nothing was measured."""
        return "-" if self.cost_us is None else f"{self.cost_us:.1f}"

    @property
    def cost_in_error(self) -> str:
        """The error as text, or "" where the region is of the model's own dtypes."""
        return f"{self.error:.1e}" if self.precision else ""

    @property
    def percent(self) -> str:
        """The share as text, or "-" where nothing was measured."""
        return "-" if self.cost_us is None else f"{self.share:.1%}"


def _stream_of(region: Region, program: Program) -> str:
    if runs_on_gpu(region, program.devices):
        return f"{CUDA} {region.stream}" if region.stream else CUDA
    return str(region.stream) if region.threads < program.threads else "team"


def rows(program: Program) -> list[TableRow]:
    """The regions in launch order, numbered as in ``show --json``; views that launch nothing are left out."""
    total = sum(region.cost_us for region in program.regions)
    launched = set(program.executed)
    return [
        TableRow(
            number,
            region.backend,
            shorten_ops(region.ops),
            shorten_nodes(region.sources),
            region.layout,
            _stream_of(region, program),
            region.cost_us if total > 0 else None,
            region.cost_us / total if total > 0 else 0.0,
            MARK * region.reassociates + GUARDED * region.finite_only,
            region.precision,
            region.error,
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
    return f"{MARK} {what} (Winograd's algorithm; `--no-reassociate` does without: docs/numerics.md)"


def free_views(program: Program) -> int:
    """The number of regions that are views, which share their input's buffer and launch nothing."""
    return len(program.regions) - len(program.executed)


def facts(report: Report, program: Program) -> list[tuple[str, str]]:
    """The lines above the placement table, each with a label and a text."""
    found = [("model", report.model), ("target", report.target)]
    found += _measured(report, program)
    if program.ordered.schedule.count:
        found.append(("streams", f"{_SCHEDULES.get(report.schedule, report.schedule)}: {_concurrency(program)}"))
    if report.finalists:
        found.append(("finalists", "; ".join(_finalists(report.finalists))))
    if report.one_row:
        found.append(("on one row", "; ".join(_finalists(report.one_row))))
    if report.errors is not None:
        found.append(("error budget", _errors(report.errors, program)))
    if len(report.best_so_far) > 1:
        found.append(("best so far", course_words(report.best_so_far)))
    if report.ended != FINISHED:
        found.append(("stopped", ended_words(report.ended, report.budget_s)))
    if report.graph_level is not None:
        found.append(("graph level", _graph_level(report.graph_level)))
    if any(region.scans for region in program.launches):
        found.append(("guards", _guards(program)))
    if program.assumed:
        found.append(("assumes", _assumed(program)))
    found.append(("arena", _arena(report)))
    for device, plan in program.arenas.items():
        if device != HOST:
            found.append((f"arena on {device}", size(plan.nbytes)))
    made = report.measurements_made
    found.append(("measurements", str(made) if made else "none made: all were known"))
    if report.spent_s:
        found.append(("measuring", ", ".join(f"{s:.1f} s {what}" for what, s in report.spent_s.items())))
    found.append(("search", f"{report.search_s:.2f} s of {report.compile_s:.1f} s in all"))
    if report.versions:
        found.append(("libraries", ", ".join(f"{name} {text}".strip() for name, text in report.versions.items())))
    opaque = list(report.opaque.items())
    found += [("not converted", f"{name}: {reason}") for name, reason in opaque[:_MOST_OPAQUE]]
    if len(opaque) > _MOST_OPAQUE:
        found.append(("not converted", f"and {len(opaque) - _MOST_OPAQUE} ONNX nodes more"))
    found += [("note", note) for note in report.notes]
    return found


def _measured(report: Report, program: Program) -> list[tuple[str, str]]:
    """The lines on the module's time and errors."""
    if not report.is_measured:
        why = f": {report.unmeasured}" if report.unmeasured else ""
        return [("measured", f"not measured{why}"), ("max error", "not checked")]
    together = "by its schedule" if program.ordered.schedule.count else "as the sum of the parts"
    predicted = f"{duration(report.predicted_us)} {together}"
    if report.predicted_us > 0:
        predicted += f"; measured is {report.measured_us / report.predicted_us:.2f}x that"
    errors = f"{report.max_abs_error:.2g} absolute, {report.relative_error:.2g} of the outputs' scale"
    what = f"{report.rows} rows" if report.rows else "the whole"
    one = "" if report.one_row_us is None else f", and {duration(report.one_row_us)} for one row"
    return [
        ("measured", f"{duration(report.measured_us)} for {what} (median){one}"),
        ("predicted", predicted),
        ("max error", errors),
    ]


def _errors(found: ErrorReport, program: Program) -> str:
    """The tolerance, and what became of it."""
    reduced = sum(1 for region in program.executed if region.precision)
    text = f"{found.tolerance:g} by {found.metric}"
    if found.measured is not None:
        text += f"; measured {found.measured:.2g}"
    if found.predicted and found.metric == "max":
        text += f" (predicted {found.predicted:.2g})"
    if found.own is not None:
        text += f", in float32 {found.own:.2g}"
    known = found.measured is not None or found.own is not None
    text += (", on " if known else "; no error was measured on ") + (found.samples or "samples")
    text += f"; {reduced} of {len(program.executed)} regions in reduced precision"
    return f"{text}; {found.reason}" if found.reason else text


def _guards(program: Program) -> str:
    count = sum(region.finite_only for region in program.executed)
    scans = sum(len(region.scans) for region in program.launches)
    regions = f"{count} regions ({GUARDED}) are" if count != 1 else f"{count} region ({GUARDED}) is"
    beyond = ", or numbers far beyond the samples' where they become 8 bits," if program.limits else ""
    return (
        f"{regions} right on finite numbers only: {scans} scan{'s' if scans != 1 else ''} a run; calls with NaN, "
        f"infinities or magnitudes above {LIMIT:.0e}{beyond} run on ONNX Runtime, with one warning"
    )


def _assumed(program: Program) -> str:
    texts = (f"{name} = {value}" for name, value in program.assumptions.items())
    return f"{'; '.join(texts)}; calls with other values run on ONNX Runtime, with one warning"


def _arena(report: Report) -> str:
    text, bound, values = size(report.arena_bytes), report.arena_lower_bound_bytes, report.value_bytes
    if bound:
        text += f", {report.arena_bytes / bound:.2f}x the lower bound of {size(bound)} (the most alive at once)"
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
    best = f"{1 / found.times:.3f}x as fast as the op level" if found.times < 1 else "nothing faster than the op level"
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
    """Groups of candidates without a cost, each as (backend, kind of reason, count, most frequent full reason)."""
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
    """The names of operators, as in ``conv2d + add + relu``, or counts of the most frequent ones of many."""
    if len(ops) <= most:
        return " + ".join(ops)
    counts = Counter(ops).most_common()
    named = counts[: most - 2]
    rest = sum(count for _, count in counts[most - 2 :])
    text = ", ".join(f"{count} {op}" for op, count in named)
    return f"{len(ops)} operators: {text}" + (f", {rest} more" if rest else "")


def shorten_nodes(names: Sequence[str]) -> str:
    """The names of ONNX nodes, or the first one, the last one and their number where there are many."""
    known = [name or "(unnamed)" for name in names]
    if len(known) <= 3:
        return ", ".join(known)
    return f"{known[0]} … {known[-1]} ({len(known)})"


def duration(us: float) -> str:
    """Write a time in microseconds as text, in a suitable unit."""
    if us < 1000:
        return f"{us:.1f} us"
    return f"{us / 1e3:.3f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def size(nbytes: float) -> str:
    """Write a number of bytes as text, in a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
