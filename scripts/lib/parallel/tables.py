"""The study's results as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from collage.report.show_terminal import plain_table
from scripts.lib.errors import largest


def tables(found: Mapping[str, Any]) -> list[RenderableType]:
    """What was measured of a decoder, what is modelled, and where the curves cross."""
    batch = found["batch"]
    title = f"{found['model']}: {batch} sequences, a token of each; ms an iteration"
    measured = plain_table()
    for name in (
        *("cached tokens", "one process", "data x 2", "tensor x 2", "cache x 2", "pipeline x 2"),
        *("error of cache", "of tensor", "bytes of cache", "derived", "on lo", "bytes of tensor", "derived"),
    ):
        measured.add_column(name, justify="right")
    for row in found["rows"]:
        measured.add_row(
            str(row["cached"]),
            *(_ms(row.get(f"{kind}_ms")) for kind in ("one", "data", "tensor", "cache", "pipeline")),
            *(
                f"{largest(value for name, value in row.items() if name.startswith(kind) and 'error' in name):.1e}"
                for kind in ("cache", "tensor")
            ),
            *(_count(row[f"cache_2_{kind}"]) for kind in ("bytes", "derived_bytes", "loopback_bytes")),
            *(_count(row[f"tensor_2_{kind}"]) for kind in ("bytes", "derived_bytes")),
        )
    modelled = plain_table()
    modelled.add_column("cached tokens", justify="right")
    rows = {(each["processes"], each["kind"], each["cached"]): each["ms"] for each in found["modelled"]}
    columns = list(dict.fromkeys((processes, kind) for processes, kind, _ in rows))
    for processes, kind in columns:
        modelled.add_column(f"{kind} x {processes}", justify="right")
    for row in found["rows"]:
        modelled.add_row(
            str(row["cached"]), *(_ms(rows[processes, kind, row["cached"]]) for processes, kind in columns)
        )
    crossings = [
        f"cache is faster than {each['against']} x {each['processes']} "
        + ("nowhere" if each["cached"] is None else f"from {each['cached']} cached tokens on")
        for each in found["crossovers"]
    ]
    return [
        *("", f"{title}, measured on this machine, whose memory the processes share", measured),
        *("", f"{title}, modelled for machines of one core and memory of their own", modelled),
        *("", "modelled crossovers:", *crossings),
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
