"""Results of the studies as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collage.bench.engines import OURS
from collage.report.show_terminal import plain_table
from scripts.lib.errors import largest
from scripts.lib.studies.comparison import geometric_means
from scripts.lib.studies.one_by_one import PROBLEM
from scripts.lib.studies.peak import Peak

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
        for name, ratio in result.get("ablation", {}).items():
            parts.append(f"{result['model']}: {ratio:.2f}x as slow without {name}")
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


def _problems(results: Sequence[Result]) -> list[str]:
    return [f"{each['model']}: {each[PROBLEM]}" for each in results if PROBLEM in each]
