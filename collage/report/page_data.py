"""What the page of a module shows, as plain values for its script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from collage.backends.base import VIEW
from collage.report.compare import Comparison
from collage.report.folding import Block, blocks
from collage.report.network import Box, Edge, network, plain_op
from collage.report.report import CandidateReport, Report
from collage.report.show import Share, details, facts, free_views, headline, marked, rejected, rivals, shares, title_of
from collage.report.time_line import TimeLine, time_line
from collage.runtime.inputs import shapes_text
from collage.schedule.program import Program
from collage.schedule.region import Region

_MOST_COSTLY = 9


@dataclass(frozen=True)
class ShownModule:
    """A module of a file: its report and program, and the ONNX protobuf that its suffix stands for, if it is known."""

    report: Report
    program: Program
    model: bytes | None = None


@dataclass(frozen=True)
class Contender:
    """The module, or an engine on the whole model. ``times`` is its time as a multiple of the module's."""

    label: str
    us: float
    noise_us: float
    times: float
    ours: bool


@dataclass(frozen=True)
class RunnerUp:
    """The best other candidate for exactly the operators of a region, as a multiple of the region's time.

    Conversions that it needs are part of its time. ``at_least`` is set if only a lower bound is known.
    """

    backend: str
    how: str
    times: float
    at_least: bool


@dataclass(frozen=True)
class Costly:
    """A region that costs much, by the position of its box or of one of its boxes, and its runner-up."""

    box: int
    us: float
    runner_up: RunnerUp | None


@dataclass(frozen=True)
class ModuleData:
    """All that the page shows of a module.

    ``candidates`` are rows of backend, pattern, layout, split and verdict (positions in ``texts``), the number of
    operators, and four times in microseconds: alone, its noise, in the network, at least; None if unknown. ``covering``
    has for each node of the report the rows of the candidates that cover it. ``names`` are its operator and ONNX node.
    """

    title: str
    headline: str
    contenders: tuple[Contender, ...]
    shares: tuple[Share, ...]
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    blocks: tuple[Block, ...]
    names: tuple[tuple[str, str, str], ...]
    texts: tuple[str, ...]
    candidates: tuple[tuple[int | float | None, ...], ...]
    covering: tuple[tuple[int, ...], ...]
    time_line: TimeLine
    costly: tuple[Costly, ...]
    rejected: tuple[tuple[str, str, int, str], ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PageData:
    """The modules that a page shows, one after another, or two side by side with their ``comparison``."""

    model: str
    modules: tuple[ModuleData, ...]
    comparison: Comparison | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def page_data(modules: Sequence[ShownModule]) -> PageData:
    """The data of a page for the modules of a file; each has its shapes as a title if there are several."""
    several = len(modules) > 1
    shown = (module_data(each, shapes_text(each.program) if several else "") for each in modules)
    return PageData(modules[0].report.model, tuple(shown))


def comparison_data(one: ShownModule, other: ShownModule, found: Comparison, names: tuple[str, str]) -> PageData:
    """The data of a page for two modules with these names."""
    shown = (module_data(each, name) for each, name in zip((one, other), names, strict=True))
    return PageData(one.report.model, tuple(shown), found)


def module_data(shown: ShownModule, title: str = "") -> ModuleData:
    """The data of one module."""
    report, program = shown.report, shown.program
    found = network(report, program, shown.model)
    table = _Candidates.of(report, program)
    views = free_views(program)
    shared = f"{views} views share their inputs' buffers" if views > 1 else "1 view shares its input's buffer"
    notes = [marked(program), f"{shared}, and no kernel runs for them." if views else ""]
    return ModuleData(
        title=title,
        headline=headline(report),
        contenders=tuple(_contenders(report)),
        shares=tuple(shares(program)),
        boxes=found.boxes,
        edges=found.edges,
        blocks=blocks(found, report.nodes),
        names=tuple((plain_op(each.op), each.source, ", ".join(each.types)) for each in report.nodes),
        texts=tuple(table.texts),
        candidates=tuple(table.rows),
        covering=tuple(table.covering),
        time_line=time_line(program),
        costly=tuple(_costly(report, program, found.boxes)),
        rejected=tuple(rejected(report.candidates)),
        facts=(*facts(report, program), *details(report, program)),
        notes=tuple(filter(None, notes)),
    )


def _contenders(report: Report) -> Iterator[Contender]:
    """The module, and each engine on the whole model, by time."""
    if not report.is_measured:
        return
    noises = {timing["median_us"]: timing.get("noise_us", 0.0) for timing in report.finalists.values()}
    who = f"This module ({title_of(report.runs_on)} on the whole model)" if report.runs_on else "This module"
    found = [Contender(who, report.measured_us, noises.get(report.measured_us, 0.0), 1.0, True)]
    for name, us in rivals(report).items():
        found.append(Contender(title_of(name), us, noises.get(us, 0.0), us / report.measured_us, False))
    yield from sorted(found, key=lambda each: each.us)


def _costly(report: Report, program: Program, boxes: Sequence[Box]) -> Iterator[Costly]:
    first: dict[int | None, int] = {}
    for at, box in enumerate(boxes):
        first.setdefault(box.region, at)
    covering: dict[tuple[int, ...], list[CandidateReport]] = {}
    for each in report.candidates:
        covering.setdefault(each.nodes, []).append(each)
    ranked = sorted(enumerate(program.regions), key=lambda item: -item[1].cost_us)
    for number, region in ranked[:_MOST_COSTLY]:
        if region.cost_us > 0 and report.is_measured and region.backend != VIEW:
            yield Costly(first[number], region.cost_us, _runner_up(region, covering.get(region.nodes, ())))


def _runner_up(region: Region, candidates: Sequence[CandidateReport]) -> RunnerUp | None:
    """The other candidate for the same nodes by which the module loses least, if some are known."""
    others = [each for each in candidates if each.loss_us is not None and each.candidate != region.candidate]
    best = min(others, key=lambda each: each.loss_us or 0.0, default=None)
    if best is None or best.loss_us is None:
        return None
    how = ", ".join(filter(None, (best.layout if best.layout != "plain" else "", best.split, best.precision)))
    return RunnerUp(best.backend, how, 1 + max(0.0, best.loss_us) / region.cost_us, best.least_us is not None)


@dataclass
class _Candidates:
    """The entries of ``Report.explain``, each once: those of a node are rows of a table whose texts are numbers."""

    texts: dict[str, int] = field(default_factory=dict)
    rows: dict[tuple[int | float | None, ...], int] = field(default_factory=dict)
    covering: list[tuple[int, ...]] = field(default_factory=list)

    @staticmethod
    def of(report: Report, program: Program) -> _Candidates:
        """The table of a module's candidates."""
        found = _Candidates()
        for node in report.explain(program.regions):
            ordered = sorted(node["candidates"], key=_by_verdict)
            found.covering.append(tuple(found._row(each) for each in ordered))
        return found

    def _row(self, entry: Mapping[str, Any]) -> int:
        texts = (entry[key] for key in ("backend", "pattern", "layout", "split", "verdict"))
        times = (entry.get(key) for key in ("cost_us", "noise_us", "in_network_us", "least_us"))
        row = *(self.texts.setdefault(text, len(self.texts)) for text in texts), entry["operators"], *times
        return self.rows.setdefault(row, len(self.rows))


def _by_verdict(entry: Mapping[str, Any]) -> tuple[bool, bool, float]:
    """A sort key: the chosen candidate, those with a cost by it, those that lost a race, and those with a reason."""
    cost, least = entry.get("cost_us"), entry.get("least_us")
    return entry["verdict"] != "chosen", cost is None and least is None, cost if cost is not None else least or 0.0
