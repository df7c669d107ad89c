"""The tables of docs/semantics.md, made from the sweep's cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scripts.lib.sweep.run import CONVERSION, Cell
from scripts.lib.sweep.values import Kind

__all__ = ["FINITE_ONLY", "INEXACT", "NOT_OFFERED", "SAME", "tables", "verdict"]

SAME, FINITE_ONLY, INEXACT, NOT_OFFERED = "same", "finite only", "not taken", "–"

_SPECIAL = (Kind.NAN.value, Kind.INFINITE.value)
_SHORT = {
    f"{sign}int{bits}": f"{sign[:1] or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
} | {"bool": "bool"}
_MARK = "¹"


def verdict(cells: Iterable[Cell]) -> str:
    """The result of one backend on an operator: one of the words above, or "same" with a mark for denormals."""
    run = [cell for cell in cells if cell.status in ("same", "wrong")]
    if not run:
        return NOT_OFFERED
    wrong = {cell.kind for cell in run if cell.status == "wrong"}
    mark = _MARK if Kind.DENORMAL.value in wrong else ""
    wrong.discard(Kind.DENORMAL.value)
    if not wrong:
        return SAME + mark
    return (FINITE_ONLY if wrong <= set(_SPECIAL) else INEXACT) + mark


def tables(cells: Sequence[Cell], backends: Sequence[str]) -> str:
    """Two tables in Markdown: floats by operator, integers by operator and dtype."""
    known = [cell for cell in cells if cell.backend in backends]
    floats = [cell for cell in known if "float" in cell.dtype]
    whole = [cell for cell in known if cell.dtype in _SHORT]
    return f"{_floats(floats, backends)}\n\n## Integers\n\n{_LEGEND}\n\n{_integers(whole, backends)}"


_LEGEND = (
    "The dtypes (i8 is int8, u8 uint8 ...) of which the backend takes the operator on values of the whole range, and "
    "gives what ONNX Runtime gives. A backend that would differ is not offered the operator."
)


def _floats(cells: Sequence[Cell], backends: Sequence[str]) -> str:
    lines = [_row(["operator", *backends]), _row(["---"] * (len(backends) + 1))]
    for op, by_backend in _grouped(cells).items():
        lines.append(_row([op, *(verdict(by_backend.get(name, ())) for name in backends)]))
    return "\n".join(lines)


def _integers(cells: Sequence[Cell], backends: Sequence[str]) -> str:
    lines = [_row(["operator", *backends]), _row(["---"] * (len(backends) + 1))]
    for op, by_backend in _grouped(cells).items():
        row = [op]
        for name in backends:
            found = by_backend.get(name, [])
            taken = [
                short
                for dtype, short in _SHORT.items()
                if verdict(cell for cell in found if cell.dtype == dtype) == SAME
            ]
            bad = [
                f"{short} {word}"
                for dtype, short in _SHORT.items()
                if (word := verdict(cell for cell in found if cell.dtype == dtype)) not in (SAME, NOT_OFFERED)
            ]
            row.append(" ".join([*taken, *bad]) or NOT_OFFERED)
        lines.append(_row(row))
    return "\n".join(lines)


def _grouped(cells: Sequence[Cell]) -> Mapping[str, Mapping[str, list[Cell]]]:
    found: dict[str, dict[str, list[Cell]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.op):
        if cell.backend != CONVERSION:
            found.setdefault(cell.op, {}).setdefault(cell.backend, []).append(cell)
    return found


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
