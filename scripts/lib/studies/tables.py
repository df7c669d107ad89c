"""Results of the studies as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collage.bench.engines import OURS
from collage.bench.peak import Peak
from collage.report.show_terminal import plain_table
from scripts.lib.errors import largest
from scripts.lib.studies.anytime import AGAIN
from scripts.lib.studies.comparison import geometric_means
from scripts.lib.studies.one_by_one import PROBLEM
from scripts.lib.studies.shared_machine import rows_of

Result = Mapping[str, Any]

_WRONG = 1e-3
"""The largest difference from ONNX Runtime's outputs, relative to their scale, that is not reported."""
_LONGEST_OPS = 6


def comparison(results: Sequence[Result], peak: Peak) -> list[RenderableType]:
    """The main table, the hot regions of models on which Collage is slower, and contenders that failed or are wrong."""
    parts: list[RenderableType] = [_medians(results)]
    parts.append(f"arithmetic limit: {peak.gflops:.0f} GFLOP/s, a large matrix product on {peak.engine}")
    for result in results:
        if (result["speedup_vs_best_engine"] or 1.0) < 1.0:
            parts += ["", f"{result['model']}: slower than {result['best_engine']}; where the time goes:"]
            parts.append(regions(result["hot_regions"]))
    return [*parts, *_amiss(results)]


def _medians(results: Sequence[Result]) -> Table:
    names = _in_order(name for result in results for name in result["engines"])
    others = [name for name in names if name != OURS]
    table = _table(
        "model",
        *(f"{name} ms" for name in (*others, OURS)),
        "best other / collage",
        "GFLOP/s",
        "of limit",
        "predicted / measured",
    )
    table.add_column("launches")
    for result in results:
        speedup = result["speedup_vs_best_engine"]
        table.add_row(
            Text(result["model"].removesuffix(".onnx")),
            *(_ms(result["engines"].get(name)) for name in (*others, OURS)),
            f"{speedup:.2f}" if speedup else "-",
            f"{result['gflops']:.0f}",
            f"{result['share_of_peak']:.0%}",
            f"{result['predicted_over_measured']:.2f}",
            Text(mix(result["mix"])),
        )
    means = geometric_means(results)
    cells = [f"{means[name]:.2f}x" if name in means else "-" for name in (*others, OURS, "best")]
    table.add_section()
    table.add_row("geometric mean / collage", *cells)
    return table


def memory(results: Sequence[Result]) -> list[RenderableType]:
    """A table for each model: the most memory in each stage."""
    parts: list[RenderableType] = []
    for result in results:
        table = _table("stage", "s", "own GB", "largest other GB", "all GB", "all / weights")
        for each in result["stages"]:
            table.add_row(
                each["stage"],
                f"{each['seconds']:.1f}",
                *(f"{each[key] / 1e9:.2f}" for key in ("own_bytes", "largest_bytes", "all_bytes")),
                f"{each['all_bytes'] / result['weight_bytes']:.1f}",
            )
        parts += ["", Text(result["model"]), table]
    return parts


def regions(rows: Sequence[Result]) -> Table:
    """The rows of ``hot_regions`` as a table."""
    table = _table("backend", "us", "share", "GFLOP/s", "GB/s")
    table.add_column("layout")
    table.add_column("operators", overflow="fold")
    for row in rows:
        more = len(row["ops"]) - _LONGEST_OPS
        ops = "+".join(row["ops"][:_LONGEST_OPS]) + (f" and {more} more" if more > 0 else "")
        table.add_row(
            row["backend"],
            f"{row['us']:.1f}",
            f"{row['share']:.0%}",
            f"{row['gflops']:.0f}",
            f"{row['gbytes_per_s']:.0f}",
            Text(row["layout"]),
            Text(ops),
        )
    return table


def ablation(results: Sequence[Result]) -> list[RenderableType]:
    """Milliseconds with each set of backends, a row for each model."""
    labels = _in_order(label for result in results for label in result["order"])
    table = _table("model", *(f"{label} ms" for label in labels))
    for result in results:
        table.add_row(Text(result["model"]), *(_ms(result["steps"].get(label)) for label in labels))
    parts: list[RenderableType] = [table]
    for result in results:
        for label, step in result["steps"].items():
            parts.append(f"{result['model']}, {label}: {mix(step['mix'])}")
        parts += _failures(result)
    return parts


def busy(results: Sequence[Result]) -> list[RenderableType]:
    """Milliseconds alone and beside a busy process, and the ratio."""
    names = _in_order(name for result in results for name in result["slowdown"])
    table = _table("model", *(f"{name} {what}" for name in names for what in ("ms", "busy ms", "slow-down")))
    for result in results:
        cells = []
        for name in names:
            ratio = result["slowdown"].get(name)
            cells += [_ms(result[which].get(name)) for which in ("quiet", "busy")]
            cells.append(f"{ratio:.2f}x" if ratio else "-")
        table.add_row(Text(result["model"]), *cells)
    if ratios := [result["slowdown"] for result in results if result["slowdown"].keys() >= set(names)]:
        means = (geometric_mean(each[name] for each in ratios) for name in names)
        table.add_row("geometric mean", *(cell for mean in means for cell in ("", "", f"{mean:.2f}x")))
    return [table, *(line for result in results for line in _failures(result))]


def shared_machine(results: Sequence[Result]) -> list[RenderableType]:
    """Each compile on a shared machine, and the time of its module against that of the one compiled alone."""
    table = _table("model", "compiled", "seconds", "measurements", "busy", "module ms", "over alone")
    for result in results:
        for cells in rows_of(result):
            table.add_row(*map(Text, cells))
    return [table, *(line for result in results for line in _failures(result))]


def anytime(results: Sequence[Result]) -> list[RenderableType]:
    """Each way of compiling: its seconds, and its module against the best way's and against the best engine."""
    table = _table(
        "model", "way", "compile s", "measurements", "ms", "share of the best way", "over best engine"
    )
    for result in results:
        for way, compiled in result["compiles"].items():
            ratio = result["over_best_engine"][way]
            table.add_row(
                Text(result["model"].removesuffix(".onnx")),
                way,
                f"{compiled['compile_s']:.0f}",
                str(compiled["measurements"]),
                _ms(result["contenders"].get(way)),
                f"{result['share_of_best'][way]:.1%}",
                f"{ratio:.3f}" if ratio else "-",
            )
        table.add_row(
            *(Text(result["model"].removesuffix(".onnx")), AGAIN, "-", "-"),
            *(_ms(result["contenders"].get(AGAIN)), f"{result['share_of_best'][AGAIN]:.1%}", "-"),
        )
    return [table, *(line for result in results for line in anytime_lines(result))]


def anytime_lines(result: Result) -> list[str]:
    """How the compiles of a model went."""
    lines = []
    if result["fastest_engine"]:
        lines.append(
            f"{result['model']}: the first module after {result['first_module_s']:.1f} s; "
            f"{result['fastest_engine']} alone needs {result['engine_load_s']:.1f} s to load and run it"
        )
    for way, compiled in result["compiles"].items():
        steps = ", ".join(f"{ms:.4g} ms after {s:.0f} s" for s, ms, _ in compiled["course"])
        lines.append(f"{result['model']}, {way}: {steps}; {compiled['ended']}")
    return lines + _failures(result)


def levels(results: Sequence[Result]) -> list[RenderableType]:
    """Milliseconds at both levels and of the engines, the ratios, and how the search went."""
    names = _in_order(name for result in results for name in result["contenders"])
    ratios = {
        "best engine / op level": "best_engine_over_op",
        "best engine / graph level": "best_engine_over_graph",
        "op level / graph level": "op_over_graph",
    }
    table = _table("model", *(f"{name} ms" for name in names), *ratios, "placements", "search s")
    for result in results:
        found = [result["speedup"][key] for key in ratios.values()]
        table.add_row(
            Text(result["model"].removesuffix(".onnx")),
            *(_ms(result["contenders"].get(name)) for name in names),
            *(f"{ratio:.3f}" if ratio else "-" for ratio in found),
            str(result["search"]["trials"]),
            f"{result['search']['seconds']:.0f}",
        )
    parts: list[RenderableType] = [table]
    for result in results:
        search = result["search"]
        steps = ", ".join(f"{seconds:.0f} s {speed:.3f}x" for seconds, speed in search["history"])
        parts.append(f"{result['model']}: {steps}; {search['ended']}; wins: {result['winner']['graph']}")
        parts += _failures(result)
    return parts


def precision(results: Sequence[Result], means: Mapping[str, float]) -> list[RenderableType]:
    """Milliseconds and errors of each contender, the ratios, and the errors on inputs that were not samples."""
    table = _table("model", "contender", "ms", "error", "within")
    compared = [result for result in results if PROBLEM not in result]
    for result in compared:
        for name, each in sorted(result["points"].items(), key=lambda item: float(item[1]["median_us"])):
            error = each["error"]
            within = "" if error is None or error > result["tolerance"] else "yes"
            text = "-" if error is None else f"{error:.1e}"
            table.add_row(Text(result["model"].removesuffix(".onnx")), name, _ms(each), text, within)
    parts: list[RenderableType] = [table]
    for result in compared:
        parts += precision_lines(result)
    parts += _problems(results)
    if means:
        parts.append("geometric means: " + ", ".join(f"{key} {mean:.3f}" for key, mean in means.items()))
    return parts


def precision_lines(result: Result) -> list[str]:
    """What was found about one model."""
    best, own = result["speedup"]["best_engine_over_ours"], result["speedup"]["float32_over_ours"]
    against = "no engine is within the tolerance" if best is None else f"best engine / ours {best:.3f}"
    if own is not None:
        against += f", float32 / ours {own:.3f}"
    against += (
        f" (in the {result['undisturbed']} of {result['rounds']} rounds in which no core was taken away)"
    )
    line = f"{result['model']}: {against}; {result['reduced']} of {result['launches']} regions in reduced precision"
    if result["draws"]:
        beyond = sum(not error <= result["tolerance"] for error in result["draws"])
        kind = "real " if result["real"] else ""
        line += (
            f"; {beyond} of {len(result['draws'])} other {kind}inputs beyond {result['tolerance']:g} "
            f"(largest {largest(result['draws']):.1e})"
        )
    for name, each in result.get("left_out", {}).items():
        line += f"; {name}, {each['over_ours']:.3f} of our time, does not count: {each['beyond']} of these are beyond"
    return [line, *_failures(result)]


def assignments(results: Sequence[Result]) -> list[RenderableType]:
    """The time that each algorithm takes, and the numbers of streams and events that it finds."""
    table = _table(
        "model", "operators", "edges", "width", "Opara ms", "Nimble ms", "Nimble / Opara", "streams", "events"
    )
    for each in results:
        table.add_row(
            each["model"],
            *(str(each[key]) for key in ("operators", "edges", "width")),
            *(f"{each['ms'][name]:.3f}" for name in ("opara", "nimble")),
            f"{each['nimble_over_opara']:.1f}x",
            *(f"{each[key]['opara']} / {each[key]['nimble']}" for key in ("streams", "events")),
        )
    return [table]


def streams(results: Sequence[Result]) -> list[RenderableType]:
    """Milliseconds in streams, one after another and of the engines, with the ratios."""
    others = list(dict.fromkeys(name for each in results for name in each["speedup"]))
    table = _table(
        "model",
        "collage ms",
        *(part for name in others for part in (f"{name} ms", "ratio")),
        "schedule",
        "at a time",
    )
    for each in results:
        cells = [f"{each['engines'][OURS]['median_us'] / 1e3:.3f}"]
        for name in others:
            known = name in each["speedup"]
            cells.append(f"{each['engines'][name]['median_us'] / 1e3:.3f}" if known else "-")
            cells.append(f"{each['speedup'][name]:.2f}x" if known else "-")
        table.add_row(each["model"], *cells, each["schedule"], f"{each['launches_at_a_time']:.2f}")
    return [table]


def overhead(results: Sequence[Result]) -> list[RenderableType]:
    """Nanoseconds for each launch."""
    table = _table("threads", "launches", "median ns / launch", "least", "under 1 us")
    for result in results:
        numbers = (result[key] for key in ("threads", "launches", "median_ns", "min_ns"))
        table.add_row(*(f"{each:g}" for each in numbers), "yes" if result["under_limit"] else "no")
    return [table]


def mix(counts: Mapping[str, int]) -> str:
    """Counts as text: ``6 onednn, 3 tvm``."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _amiss(results: Sequence[Result]) -> list[str]:
    """A line for each contender that failed, or whose outputs differ from ONNX Runtime's."""
    lines: list[str] = []
    for result in results:
        lines += _failures(result)
        for name, timing in result["engines"].items():
            error = timing["max_relative_error"]
            if error is not None and not error <= _WRONG:
                lines.append(f"{result['model']}: outputs of {name} are off by {error:.2g} of their scale")
    return lines


def _failures(result: Result) -> list[str]:
    return [f"{result['model']}: {name} failed: {why}" for name, why in result["failed"].items()]


def _in_order(names: Any) -> list[str]:
    """The names without repetitions, in order of appearance."""
    return list(dict.fromkeys(names))


def _table(first: str, *numbers: str) -> Table:
    table = plain_table()
    table.add_column(first, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right")
    return table


def _ms(timing: Mapping[str, Any] | None) -> str:
    return f"{timing['median_us'] / 1e3:.2f}" if timing else "-"


def accuracy(results: Sequence[Result]) -> list[RenderableType]:
    """The decisions within a tolerance that are others than in float32, and what the tolerance was spent on."""
    table = _table("model", "task", "decisions", "different", "error", "in reduced precision")
    for each in results:
        if PROBLEM in each:
            continue
        counts = ", ".join(f"{count} {kind}" for kind, count in each["of_each"].items())
        decisions = f"{each['decisions']} ({counts})" if counts else str(each["decisions"])
        error = "-" if each["error"] is None else f"{each['error']:.1e}"
        share = f"{each['reduced']} of {each['regions']} regions"
        table.add_row(Text(each["model"]), each["task"], decisions, str(each["different"]), error, share)
    return [table, *_problems(results)]


def decisions(result: Result) -> list[str]:
    """The decisions of one model in words."""
    lines = [f"{result['model']}: {result['different']} of {result['decisions']} decisions differ"]
    return lines + [f"  {each['ours']!r}, in float32 {each['float32']!r}" for each in result["examples"]]


def _problems(results: Sequence[Result]) -> list[str]:
    return [f"{each['model']}: {each[PROBLEM]}" for each in results if PROBLEM in each]
