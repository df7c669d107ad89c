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
_TITLES = {
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "mkl": "MKL",
    "onednn": "oneDNN",
    "onnxruntime": "ONNX Runtime",
    "onnxruntime_cuda": "ONNX Runtime (CUDA)",
    "openvino": "OpenVINO",
    "tables": "Collage's own engine",
    "tensorrt": "TensorRT",
    "torch_cuda": "PyTorch (CUDA)",
    "tvm": "TVM",
    "tvm_cuda": "TVM (CUDA)",
}
TABLES = "tables"
"""Collage's own engine, which no comparison boasts with."""
_LARGE_SHARE = 0.01
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


def slowest(found: Sequence[TableRow], most: int = 10) -> list[TableRow]:
    """The rows of the slowest regions, in launch order."""
    kept = sorted(found, key=lambda row: -row.share)[:most]
    return [row for row in found if row in kept]


def marked(program: Program) -> str:
    """A line that explains the marks of regions, or "" if there are none."""
    reassociates = sum(region.reassociates for region in program.executed)
    guarded = sum(region.finite_only for region in program.executed)
    found = [f"{MARK} sums in another order (Winograd's algorithm; --no-reassociate does without)"] * bool(reassociates)
    found += [f"{GUARDED} right on finite numbers only, and guarded"] * bool(guarded)
    return "; ".join(found)


def free_views(program: Program) -> int:
    """The number of regions that are views, which share their input's buffer and launch nothing."""
    return len(program.regions) - len(program.executed)


def headline(report: Report) -> str:
    """The time of the module, and how much longer each engine takes: "8.05 ms: 1.26x OpenVINO, 1.59x ONNX Runtime".

    If an engine runs the model whole, its name is given.
    """
    if not report.is_measured:
        return "not measured" + (f": {report.unmeasured}" if report.unmeasured else "")
    what = f" for {report.rows} rows" if report.rows else ""
    time = f"{short_duration(report.measured_us)}{what}"
    if one := report.one_row_us:
        time += f", {short_duration(one)} for one"
    if report.runs_on:
        time += f", by {title_of(report.runs_on)} on the whole model"
    ratios = ", ".join(f"{us / report.measured_us:.2f}x {title_of(name)}" for name, us in rivals(report).items())
    return f"{time}: {ratios}" if ratios else time


def title_of(backend: str) -> str:
    """The name of a backend as its makers write it."""
    return _TITLES.get(backend, backend)


def rivals(report: Report) -> dict[str, float]:
    """The microseconds of the engines of others on the whole model, without the one that runs this module."""
    return {name: us for name, us in report.engines.items() if name not in (report.runs_on, TABLES)}


def facts(report: Report, program: Program) -> list[tuple[str, str]]:
    """The lines that everybody reads, each with a label and a text."""
    found = _measured(report, program)
    if report.errors is not None:
        found.append(("tolerance", _errors(report.errors, program)))
    if report.ended != FINISHED:
        found.append(("stopped", ended_words(report.ended, report.budget_s)))
    if any(region.scans for region in program.launches):
        found.append(("guards", _guards(program)))
    if program.assumed:
        found.append(("assumes", _assumed(program)))
    opaque = list(report.opaque.items())
    found += [("not converted", f"{name}: {reason}") for name, reason in opaque[:_MOST_OPAQUE]]
    if len(opaque) > _MOST_OPAQUE:
        found.append(("not converted", f"and {len(opaque) - _MOST_OPAQUE} ONNX nodes more"))
    found += [("note", note) for note in report.notes]
    return found


def details(report: Report, program: Program) -> list[tuple[str, str]]:
    """The lines for those who want to know how the compile went: ``collage show --details``."""
    found = [("target", report.target)]
    if program.ordered.schedule.count:
        found.append(("streams", f"{_SCHEDULES.get(report.schedule, report.schedule)}: {_concurrency(program)}"))
    if report.finalists:
        found.append(("last race", "; ".join(_finalists(report.finalists))))
    if report.one_row:
        found.append(("on one row", "; ".join(_finalists(report.one_row))))
    if len(report.best_so_far) > 1:
        found.append(("best so far", course_words(report.best_so_far)))
    if report.graph_level is not None:
        found.append(("graph level", _graph_level(report.graph_level)))
    found.append(("memory", _arena(report)))
    for device, plan in program.arenas.items():
        if device != HOST:
            found.append((f"memory on {device}", size(plan.nbytes)))
    made = report.measurements_made
    found.append(("measurements", str(made) if made else "none made: all were known"))
    if report.spent_s:
        found.append(("measuring", ", ".join(f"{s:.1f} s {what}" for what, s in report.spent_s.items())))
    found.append(("search", f"{report.search_s:.2f} s of {report.compile_s:.1f} s in all"))
    if report.versions:
        found.append(("libraries", ", ".join(f"{name} {text}".strip() for name, text in report.versions.items())))
    return found


@dataclass(frozen=True)
class Share:
    """A backend's part of a module: its number of kernels, and their time in microseconds and as a share (0 to 1).

    The share is None if nothing was measured.
    """

    backend: str
    kernels: int
    us: float
    share: float | None


def shares(program: Program) -> list[Share]:
    """The parts of all backends, the one with the most time first. Views launch nothing, and have none."""
    total = sum(region.cost_us for region in program.executed)
    counts = Counter(region.backend for region in program.executed)
    us = {name: sum(r.cost_us for r in program.executed if r.backend == name) for name in counts}
    found = [Share(name, count, us[name], us[name] / total if total else None) for name, count in counts.items()]
    return sorted(found, key=lambda each: -each.us)


def _measured(report: Report, program: Program) -> list[tuple[str, str]]:
    """The lines on the module's time and errors."""
    if not report.is_measured:
        return [("outputs", "not checked")]
    errors = ("outputs", errors_words(report.max_abs_error, report.relative_error))
    if report.runs_on:
        return [errors]
    together = "its schedule" if program.ordered.schedule.count else "the sum of its kernels"
    predicted = f"{duration(report.predicted_us)} by {together}"
    if report.predicted_us > 0:
        predicted += f"; measured is {report.measured_us / report.predicted_us:.2f}x that"
    return [("predicted", predicted), errors]


def errors_words(absolute: float, relative: float) -> str:
    """How far outputs are from ONNX Runtime's, by what people compare: ``relative`` is a share of the values' scale.

    A share says nothing of values that are next to zero, so that no large one is shown: a value with a larger share
    than 1 % is below a hundred times the absolute error.
    """
    if absolute == relative == 0:
        return "equal to ONNX Runtime's"
    share = share_words(absolute, relative)
    text = f"within {absolute:.1e} of ONNX Runtime's"
    return f"{text}, {share} of their scale" if relative <= _LARGE_SHARE else f"{text}; off by {share}"


def share_words(absolute: float, relative: float) -> str:
    """The relative error, or the size of the values that have a large one."""
    if relative <= _LARGE_SHARE:
        return f"{relative:.1e}"
    return f"more than {_LARGE_SHARE:.0%} only below {absolute / _LARGE_SHARE:.0e}"


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
    beyond = ", or numbers far beyond the samples'," if program.limits else ""
    return f"inputs with NaN, infinities or magnitudes above {LIMIT:.0e}{beyond} run on ONNX Runtime, with one warning"


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


def short_duration(us: float) -> str:
    """Write a time in microseconds with three digits or more, as in a headline."""
    value, unit = (us, "us") if us < 100 else (us / 1e3, "ms") if us < 1e6 else (us / 1e6, "s")
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def size(nbytes: float) -> str:
    """Write a number of bytes as text, in a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
