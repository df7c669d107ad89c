"""The study of a model as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from collage.report.show_terminal import plain_table


def tables(found: Mapping[str, Any]) -> list[RenderableType]:
    """All parts of the study of one model."""
    parts: list[RenderableType] = ["", found["model"]]
    if "right" in found:
        parts += ["greedy answers against ONNX Runtime on the original decoder", _right(found["right"])]
    if "alone" in found:
        parts += ["the engine alone, against a static batch", _alone(found["alone"]), _scheduler(found)]
    if "trace" in found:
        parts += ["Orca's trace: all requests at once", _saturated(found["trace"])]
        parts += ["Orca's trace: latency per token against the rate", _rates(found["trace"]["by_contender"])]
        parts += [_ratio(label, each) for label, each in found["trace"]["ratios"].items()]
    if "clock" in found:
        requests = found["clock"]["requests"]
        parts += [
            f"Orca's trace, {requests} requests on a clock that adds up iterations",
            _clock(found["clock"]),
            _rates(found["clock"]["by_form"]),
        ]
    if "between" in found:
        parts += ["between tokens, at 70 % load with long prompts", _between(found["between"])]
    parts += [f"left out: {why}" for why in found["missing"].values()]
    parts += [f"failed: {why}" for why in found["failed"].values()]
    return parts


def _right(found: Mapping[str, Any]) -> str:
    return (
        f"{found['same_tokens']:.2%} of {found['tokens']} tokens are the same; a chosen token's logit is below the "
        f"largest one by {found['largest_gap']:.1e} of it at most, and log probabilities differ by "
        f"{found['largest_error']:.1e} at most"
    )


def _alone(rows: list[Mapping[str, Any]]) -> Table:
    table = _table(
        "inputs",
        "batch",
        "tokens/s",
        "of static",
        "+-",
        "by default",
        "drawn",
        "of bound",
        "scheduler us",
        "same tokens",
    )
    for each in rows:
        table.add_row(
            str(each["inputs"]),
            str(each["batch"]),
            f"{each['tokens_per_s']:.0f}",
            f"{each['share_of_static']:.3f}",
            f"{each['share_noise']:.3f}",
            f"{each['chunked_share']:.3f}",
            f"{each['drawn_share']:.3f}",
            f"{each['share_of_bound']:.2f}",
            f"{each['scheduler_us']:.0f}",
            f"{each['same_tokens']:.1%}",
        )
    return table


def _scheduler(found: Mapping[str, Any]) -> str:
    us = found["scheduler_us"]
    parts = ", ".join(f"{name} {us[name]:.0f}" for name in ("plan", "begin", "finish"))
    return (
        f"the scheduler without a model: {us['scheduler']:.0f} us an iteration ({parts}); "
        f"{us['prompts']:.0f} us with prompts"
    )


def _saturated(trace: Mapping[str, Any]) -> Table:
    table = _table(
        "contender",
        "requests/s",
        "tokens/s",
        "spread",
        "of bound",
        "unloaded ms",
        "rate at twice",
        "same tokens",
    )
    for name, each in trace["by_contender"].items():
        rate, same = each["rate_at_twice_unloaded"], each["same_tokens"]
        table.add_row(
            name,
            f"{each['saturated']['requests_per_s']:.2f}",
            f"{each['saturated']['tokens_per_s']:.0f}",
            f"{each['saturated_spread']:.2f}",
            f"{each['share_of_bound']:.2f}",
            f"{each['unloaded']['latency_ms']:.1f}",
            "-" if rate is None else f"{rate:.2f}",
            "-" if same is None else f"{same:.1%}",
        )
    return table


def _rates(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    rates = sorted({row["rate"] for each in rows.values() for row in each["rates"]})
    table = _table("ms a token at", *(f"{rate:.2f}/s" for rate in rates))
    for name, each in rows.items():
        known = {row["rate"]: row["latency_ms"] for row in each["rates"]}
        table.add_row(name, *(f"{known[rate]:.1f}" if rate in known else "-" for rate in rates))
    return table


def _ratio(label: str, each: Mapping[str, Any]) -> str:
    at = each["at_twice_unloaded"]
    return (
        f"Collage over {label.replace('_', ' ')}: {each['saturated']:.2f} saturated, "
        f"{'-' if at is None else f'{at:.2f}'} at twice Collage's unloaded latency"
    )


def _clock(found: Mapping[str, Any]) -> Table:
    table = _table(
        "form",
        "requests/s",
        "Collage over it",
        "rate at twice unloaded",
        "Collage over it",
        f"with {found['few_requests']} requests",
    )
    rows = found["by_form"]
    ours = next(iter(rows.values()))
    for name, each in rows.items():
        cells = []
        for key in ("saturated", "rate_at_twice_unloaded"):
            cells += [f"{each[key]:.2f}", f"{ours[key] / each[key]:.2f}" if each[key] else "-"]
        table.add_row(name, *cells, f"{each['with_few_requests']:.2f}")
    return table


def _between(by_contender: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("contender", "requests/s", "median ms", "99 % ms", "ratio", "first token ms")
    for name, each in by_contender.items():
        table.add_row(
            name,
            f"{each['rate']:.2f}",
            f"{each['between_ms']:.1f}",
            f"{each['between_p99_ms']:.1f}",
            f"{each['p99_over_median']:.2f}",
            f"{each['first_ms']:.0f}",
        )
    return table


def _table(first: str, *numbers: str) -> Table:
    table = plain_table()
    table.add_column(first, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right")
    return table
