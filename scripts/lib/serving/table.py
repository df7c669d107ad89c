"""The study of a model as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from collage.report.show_terminal import plain_table
from scripts.lib.serving.contender import OURS

_SATURATED = (
    "contender, requests/s, Collage over it, tokens/s, spread, unloaded ms, rate at twice, Collage over it, "
    "same tokens"
)


def tables(found: Mapping[str, Any]) -> list[RenderableType]:
    """All parts of the study of one model."""
    parts: list[RenderableType] = ["", found["model"]]
    if "right" in found:
        parts += ["greedy answers against ONNX Runtime on the original decoder", _right(found["right"])]
    if found.get("trace"):
        parts += ["Orca's trace: all requests at once", _saturated(found["trace"])]
        parts += ["Orca's trace: latency per token against the rate", _rates(found["trace"])]
    if "between" in found:
        parts += ["between tokens, at 70 % load with long prompts", _between(found["between"])]
    parts += [f"left out: {why}" for why in found["missing"].values()]
    return parts + [f"failed: {why}" for why in found["failed"].values()]


def _right(found: Mapping[str, Any]) -> str:
    return (
        f"{found['same_tokens']:.2%} of {found['tokens']} tokens are the same; a chosen token's logit is below the "
        f"largest one by {found['largest_gap']:.1e} of it at most, and log probabilities differ by "
        f"{found['largest_error']:.1e} at most"
    )


def _saturated(trace: Mapping[str, Any]) -> Table:
    ours = trace[OURS]["saturated"]["requests_per_s"], trace[OURS]["rate_at_twice_unloaded"]
    rows = []
    for name, each in trace.items():
        full, twice = each["saturated"], each["rate_at_twice_unloaded"]
        rows.append(
            [
                name,
                f"{full['requests_per_s']:.2f}",
                f"{ours[0] / full['requests_per_s']:.2f}",
                f"{full['tokens_per_s']:.0f}",
                f"{each['saturated_spread']:.2f}",
                f"{each['unloaded']['latency_ms']:.1f}",
                "-" if twice is None else f"{twice:.2f}",
                "-" if twice is None or ours[1] is None else f"{ours[1] / twice:.2f}",
                f"{each['same_tokens']:.1%}",
            ]
        )
    return _table(_SATURATED, rows)


def _rates(trace: Mapping[str, Any]) -> Table:
    rates = sorted({row["rate"] for each in trace.values() for row in each["rates"]})
    rows = []
    for name, each in trace.items():
        known = {row["rate"]: f"{row['latency_ms']:.1f}" for row in each["rates"]}
        rows.append([name, *(known.get(rate, "-") for rate in rates)])
    return _table(", ".join(["ms a token at", *(f"{rate:.2f}/s" for rate in rates)]), rows)


def _between(by_contender: Mapping[str, Any]) -> Table:
    return _table(
        "contender, requests/s, median ms, 99 % ms, ratio, first token ms",
        [
            [
                name,
                f"{each['rate']:.2f}",
                f"{each['between_ms']:.1f}",
                f"{each['between_p99_ms']:.1f}",
                f"{each['p99_over_median']:.2f}",
                f"{each['first_ms']:.0f}",
            ]
            for name, each in by_contender.items()
        ],
    )


def _table(titles: str, rows: Iterable[Iterable[str]]) -> Table:
    """A table with these titles, which have commas between them."""
    table = plain_table()
    for number, title in enumerate(titles.split(", ")):
        table.add_column(title, justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*row)
    return table
