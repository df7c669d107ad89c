"""Which of two rows with the same key is the more certain one: a total order, so that a merge has one result.

The order depends on the rows alone. A merge therefore keeps the same rows whichever database comes first, and doing it
again changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from collage.measure_db.results import RejectionKind
from collage.measure_db.rows import Row
from collage.measure_db.tables import FACTS, KERNELS, NETWORKS

Race: TypeAlias = tuple[str, int, str, str]
"""Graph, threads, hardware and versions: what the plans of one network share."""

_PLAN = re.compile(
    r"NetworkKey\(graph='(?P<graph>[^']*)', placement='[^']*', threads=(?P<threads>\d{1,9}), "
    r"hardware='(?P<hardware>[^']*)', versions='(?P<versions>[^']*)'\)"
)
_OF_THE_DAY = frozenset({RejectionKind.TIMEOUT.value, RejectionKind.MEMORY.value})
"""Rejections that a busy machine or a low limit may cause. A measurement says more than they do."""


def certainty(row: Row) -> tuple[Any, ...]:
    """A value that is larger for a more certain row.

    Of kernels: the later edition of the numerics gate; then a kernel that was found wrong or broken, for it may be so
    only now and then; then the measurement with less noise; then a kernel that is only known to be slower than another.
    What is still equal is decided by the newer date, and at last by the values themselves.
    """
    last = (row["created"], tuple(map(str, row.values)))
    if row.table is KERNELS:
        if row.rejected:
            return (row["gate"], 0 if row["rejection"] in _OF_THE_DAY else 3, 0.0, *last)
        if row.outrun:
            return (row["gate"], 1, float(row["repeats"]), *last)
        return (row["gate"], 2, -row.relative_noise, *last)
    if row.table is NETWORKS:
        return (-row.relative_noise, *last)
    return last


def race_of(row: Row) -> Race | None:
    """The race that the timing of a plan belongs to, or a fact that is kept under a plan's key; else None.

    Plans of one network ran against each other. Only times of one database can be compared, so a merge takes or leaves
    all of them.
    """
    if row.table is NETWORKS:
        return str(row["graph"]), int(row["threads"]), str(row["hardware"]), str(row["versions"])
    found = _PLAN.match(row["key"]) if row.table is FACTS else None
    return None if found is None else (found["graph"], int(found["threads"]), found["hardware"], found["versions"])


def race_certainty(rows: Sequence[Row]) -> tuple[Any, ...]:
    """A value that is larger for the more certain rows of a race: of more plans, then of less noise."""
    plans = sorted(certainty(row) for row in rows if row.table is NETWORKS)
    facts = sorted(certainty(row) for row in rows if row.table is FACTS)
    return len(plans), *plans, len(facts), *facts
