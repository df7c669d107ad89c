"""How much is measured in tests. It is a file of its own for Pythons that tests start (see ``tests/started``)."""

from __future__ import annotations

from typing import Any

FULL = {
    "kernel_s": 0.03,
    "rounds": 8,
    "compare_s": 2.0,
    "settle_s": 0.005,
    "turn_s": 0.004,
    "speeds_s": 0.0,
    "noted_s": 0.05,
}
EXHAUSTIVE = {**FULL, "transform_s": 0.05}
FIRST = {"rounds": 3, "compare_s": 0.2, "settle_s": 0.0, "turn_s": 0.004}

RACE = {"_BURST_S": 0.02, "_SETTLE_S": 0.005}


def take_little(effort: Any) -> None:
    """Change the efforts of the module ``collage.measure.timing.effort`` in place: others have imported them."""
    vars(effort.FULL).update(FULL)
    vars(effort.EXHAUSTIVE).update(EXHAUSTIVE)
    vars(effort.FIRST).update(FIRST)


def race_shortly(race: Any) -> None:
    """Let contenders run in short bursts in races of the module ``collage.bench.race``, in as many rounds as ever."""
    vars(race).update(RACE)
