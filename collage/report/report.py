"""The report of a compile: what was chosen, what it costs, and why each other candidate was not chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

from collage.core.typed import MalformedError, typed
from collage.measure_db.results import Timing
from collage.report.best_so_far import FINISHED, BestSoFar
from collage.schedule.region import CandidateId, Region


@dataclass(frozen=True)
class CandidateReport:
    """A candidate with its nodes, backend, pattern, layout and split, and its cost or the reason why it has none.

    ``cost_us`` is its time alone, and ``in_network_us`` the one in its place in the network, if it ran there.
    ``threads``, ``original``, ``profile`` and ``precision`` are as in ``CandidateId``. A ``finite_only`` candidate
    needs a guard where NaN and infinities may occur. One that lost a race has no cost: it takes ``least_us``
    microseconds or more. ``verdict`` says why it was not chosen, and ``loss_us`` how many microseconds longer the
    module would take with it, and with the cheapest kernels for what it cuts.
    """

    nodes: tuple[int, ...]
    backend: str
    pattern: str
    layout: str = "plain"
    split: str = ""
    cost_us: float | None = None
    noise_us: float | None = None
    reason: str = ""
    finite_only: bool = False
    threads: int = 1
    original: bool = False
    profile: str = ""
    least_us: float | None = None
    verdict: str = ""
    precision: str = ""
    in_network_us: float | None = None
    loss_us: float | None = None

    @property
    def candidate(self) -> CandidateId:
        """The identity of the candidate."""
        about = self.layout, self.split, self.threads, self.original, self.profile, self.precision
        return CandidateId(self.nodes, self.backend, *about)


@dataclass(frozen=True)
class NodeReport:
    """An operator of the graph: its Relax name, the ONNX node that it came from, and that node's type.

    ``types`` are those of its outputs, as ``float32[1x64x56x56]``. Old files have none.
    """

    op: str
    source: str
    onnx_op: str
    types: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraphLevelReport:
    """The course of the graph-level search (section 2.4.3); ``ended`` says why it stopped.

    ``times`` is the best placement's time as a multiple of the op-level placement's, and ``history`` has, for each
    new best one, the seconds of trials up to then and its multiple (Figure 2.10 is its inverse).
    """

    genes: int
    trials: int
    generations: int
    seconds: float
    times: float
    ended: str
    history: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class ErrorReport:
    """What became of the user's ``tolerance`` by a ``metric``.

    ``samples`` says on which inputs errors are measured, ``own`` is the error in the model's own dtypes, and
    ``measured`` that of the module; each is None where it is not known, and ``reason`` then says why. ``predicted`` is
    the module's error by the search, which adds up the errors of its kernels, as a share of the outputs' scale.
    ``rounds`` placements were run to correct the predictions.
    """

    tolerance: float
    metric: str
    samples: str = ""
    own: float | None = None
    predicted: float = 0.0
    measured: float | None = None
    rounds: int = 0
    reason: str = ""


def figures(timings: Mapping[str, Timing]) -> dict[str, dict[str, float]]:
    """The timings of finalists by label, in microseconds, in the form of a report."""
    return {
        label: {"median_us": t.median_us, "noise_us": t.noise_us, "min_us": t.min_us} for label, t in timings.items()
    }


_IF_ANY = (
    "fixed",
    "first_mix",
    "predictions",
    "label_dtype",
    "columns",
    "rows",
    "one_row_us",
    "one_row",
    "for_one",
    "sizes",
    "runs_on",
)
"""Fields of a report that its JSON has only if there is something in them."""


@dataclass(frozen=True)
class Report:
    """All results of a compile. Times are microseconds unless the name says otherwise.

    ``measured_us`` is the median of the whole module. ``predicted_us`` is the sum of its parts (Eq. 2.2), or the end of
    its schedule; each part is timed inside the whole, in the same rounds. ``finalists`` holds the medians of
    the placements that ran against each other in one interleaved run. ``max_abs_error`` is an absolute error, and
    ``relative_error`` is relative to the scale of the values around. ``schedule`` names the algorithm that chose
    streams and order. ``arena_bytes`` is the size of the arena, ``arena_lower_bound_bytes`` the most bytes that are
    alive at once, and ``value_bytes`` the sum of all values. ``best_so_far`` has an entry for each new best module.
    ``ended`` tells what ended the compile, whose budget was ``budget_s`` seconds. ``spent_s`` are the seconds that the
    measuring worker has spent, by kind of work. ``unmeasured`` is the reason why the
    module was neither measured nor checked, or "" if it was; the times are then 0 and the errors infinite.
    """

    model: str
    target: str
    threads: int
    predicted_us: float
    measured_us: float
    max_abs_error: float
    relative_error: float
    measurements_made: int
    search_s: float
    compile_s: float
    epsilon_us: float
    versions: Mapping[str, str]
    finalists: Mapping[str, Mapping[str, float]]
    opaque: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    nodes: Sequence[NodeReport] = ()
    candidates: Sequence[CandidateReport] = ()
    arena_bytes: int = 0
    arena_lower_bound_bytes: int = 0
    value_bytes: int = 0
    schedule: str = "sequential"
    graph_level: GraphLevelReport | None = None
    """None for a compile at op level."""
    unmeasured: str = ""
    best_so_far: Sequence[BestSoFar] = ()
    first_mix: BestSoFar | None = None
    """The first placement that ran, whether it was faster than the engines or not."""
    ended: str = FINISHED
    budget_s: float | None = None
    """None for a compile without a budget."""
    spent_s: Mapping[str, float] = field(default_factory=dict)
    errors: ErrorReport | None = None
    """None for a compile without a tolerance."""
    fixed: Sequence[str] = ()
    """The model's overridable initializers, which are no inputs of the module."""
    predictions: Mapping[str, str] = field(default_factory=dict)
    """The names of the outputs of ``predict`` and ``predict_proba``, by these words."""
    label_dtype: str = ""
    """The dtype of the labels that ``predict`` gives, as numpy writes it; "" for that of the output."""
    columns: Sequence[str] = ()
    """The names of the columns of the only input, if the model has them."""
    rows: int = 0
    """The rows that times are for, if the module takes any number of them; 0 if its shapes are fixed."""
    for_one: Sequence[str] = ()
    """Inputs whose first axis, open in the model, has one element in the placement, since no number was given."""
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The shapes that times are for, if the module takes any; empty if its shapes are fixed."""
    one_row_us: float | None = None
    """The median of the whole module on single rows, if it takes any number of them."""
    one_row: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The ``finalists`` on single rows."""
    engines: Mapping[str, float] = field(default_factory=dict)
    """The microseconds of each engine on the whole model beside the module, the fastest first."""
    runs_on: str = ""
    """The engine that runs the model whole; "" for a mix."""

    @property
    def is_measured(self) -> bool:
        """Whether the module was run and timed."""
        return bool(self.finalists) or self.measured_us > 0

    @property
    def time_text(self) -> str:
        """The measured time in milliseconds as text, or "not measured"."""
        sizes = ", ".join(f"{name}:{'x'.join(map(str, each))}" for name, each in self.sizes.items())
        what = f"{self.rows} rows" if self.rows else sizes
        return f"{self.measured_us / 1000:.3f} ms{what and f' for {what}'}" if self.is_measured else "not measured"

    def to_json(self) -> dict[str, Any]:
        """Plain values for the module file, with some fields only if there is something in them."""
        found = asdict(self)
        for name in _IF_ANY:
            if not found[name]:
                del found[name]
        for each in found["candidates"]:
            if not each["precision"]:
                del each["precision"]
            for name in ("in_network_us", "loss_us"):
                if each[name] is None:
                    del each[name]
        return found

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Report:
        """The inverse of ``to_json``. Raises ValueError for anything else."""
        found = typed(Report, data)
        if any(not 0 <= node < len(found.nodes) for each in found.candidates for node in each.nodes):
            raise MalformedError("its report names nodes that do not exist")
        if any("median_us" not in each for each in found.finalists.values()):
            raise MalformedError("its report lacks a finalist's time")
        return found

    def summary(self, regions: Sequence[Region]) -> dict[str, Any]:
        """The JSON contract of ``show --json`` and ``compile --json``."""
        left_out = ("candidates", "nodes", "fixed", *(() if self.rows else ("rows", "one_row_us", "one_row")))
        left_out += tuple(
            name for name in ("label_dtype", "columns", "for_one", "sizes", "runs_on") if not getattr(self, name)
        )
        names = (each.name for each in fields(self) if each.name not in left_out)
        found = {name: _plain(getattr(self, name)) for name in names}
        for name, digits in (("search_s", 4), ("compile_s", 3), ("epsilon_us", 3)):
            found[name] = round(found[name], digits)
        for name in ("predicted_us", "measured_us"):
            found[name] = round(found[name], 3) if self.is_measured else None
        if self.one_row_us is not None:
            found["one_row_us"] = round(self.one_row_us, 3)
        return {**found, "regions": [region.summary() for region in regions], "nodes": self.explain(regions)}

    def explain(self, regions: Sequence[Region]) -> list[dict[str, Any]]:
        """For every node, the chosen backend and each candidate that covers it, with its cost or why it has none."""
        chosen = {index: region for region in regions for index in region.nodes}
        covering: list[list[CandidateReport]] = [[] for _ in self.nodes]
        for candidate in self.candidates:
            for index in candidate.nodes:
                covering[index].append(candidate)
        found = []
        for index, node in enumerate(self.nodes):
            region = chosen.get(index)
            taken = next((c for c in covering[index] if region and c.candidate == region.candidate), None)
            found.append(
                {
                    "op": node.op,
                    "source": node.source,
                    "backend": region.backend if region else None,
                    "candidates": [_entry(c, taken, self.threads) for c in covering[index]],
                }
            )
        return found


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _entry(candidate: CandidateReport, taken: CandidateReport | None, threads: int) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "backend": candidate.backend,
        "pattern": candidate.pattern,
        "layout": candidate.layout,
        "split": _split_words(candidate, threads),
        "operators": len(candidate.nodes),
    }
    if candidate.precision:
        entry["precision"] = candidate.precision
    if candidate.cost_us is not None:
        entry["cost_us"] = round(candidate.cost_us, 3)
        entry["noise_us"] = round(candidate.noise_us or 0.0, 3)
        entry["finite_only"] = candidate.finite_only
    if candidate.in_network_us is not None:
        entry["in_network_us"] = round(candidate.in_network_us, 3)
    if candidate.least_us is not None:
        entry["least_us"] = round(candidate.least_us, 3)
    if candidate.loss_us is not None:
        entry["loss_us"] = round(candidate.loss_us, 3)
    if taken is not None and candidate.candidate == taken.candidate:
        entry["verdict"] = "chosen"
    else:
        entry["verdict"] = candidate.reason or candidate.verdict or "not chosen"
    return entry


def _split_words(candidate: CandidateReport, threads: int) -> str:
    """How a candidate divides its work, its reduced precision, and whether it has fewer than the usual ``threads``."""
    split = candidate.split
    if candidate.original:
        split = ", ".join(filter(None, ("as written", candidate.profile)))
    alone = "one thread" if candidate.threads < threads else ""
    return ", ".join(filter(None, (split, candidate.precision, alone)))
