"""The machine's speeds: measured in the worker once, then remembered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from collage.errors import MeasurementError
from collage.kernel.machine_speeds import WRITTEN_DOWN, Blocking, MachineSpeeds
from collage.kernel.target import Target
from collage.measure.worker.process import WorkerDiedError, Workers
from collage.measure.worker.protocol import MeasureSpeeds
from collage.measure_db.database import Database, Json
from collage.measure_db.keys import Fact, FactKey
from collage.native.kernel_library import REVISION

log = logging.getLogger(__name__)

_EDITION = 1
"""To be counted up when speeds are measured in another way: those that were recorded before are then measured again."""
_LIMIT_S = 30.0
_LEAST, _MOST = 1e-9, 1e12
"""Less and more than any speed, time or size: a row with such a number is damaged."""


def speeds_key(target: Target) -> FactKey[MachineSpeeds]:
    """Where the speeds of a machine are, with a team of the target's size and with these kernels."""
    text = f"{target.measured_on}; {target.threads} threads; kernels {REVISION}; edition {_EDITION}"
    return MACHINE_SPEEDS.at(text)


def machine_speeds(
    target: Target, database: Database, workers: Workers, seconds: float = 0.0
) -> MachineSpeeds:
    """The speeds of the machine, as they are recorded, else measured now with samples for so many seconds.

    How busy the machine was is kept beside them, so that speeds which others have disturbed are measured again.
    ``WRITTEN_DOWN`` is returned if ``seconds`` is 0, if nothing can be measured, and if the worker dies. It is not
    recorded, so that the next compile tries again.
    """
    key = speeds_key(target)
    known = key.look_up(database)
    if known is not None:
        return known
    found = replace(WRITTEN_DOWN, threads=target.threads)
    if not seconds:
        return found
    worker = workers.lend(target.threads, prepared=True)
    message = MeasureSpeeds(target.threads, seconds, _LIMIT_S)
    try:
        reply: MachineSpeeds = worker.ask(message, _LIMIT_S)
        found = reply
    except (WorkerDiedError, MeasurementError) as error:
        log.warning("the machine's speeds cannot be measured, and typical speeds are used: %s", error)
    finally:
        workers.release(worker, target.threads)
    others = key.look_up(database)
    if others is not None:  # another compile, which was first: both have to plan with the same numbers
        return others
    if found.measured:
        key.record(database, found)
    log.info("speeds of the machine: %s", found)
    return found


def write_speeds(speeds: MachineSpeeds) -> Json:
    """Speeds as JSON."""
    found: Json = asdict(speeds)
    return found


def read_speeds(value: Any) -> MachineSpeeds:
    """The inverse of ``write_speeds``, also of rows with every cache's speeds. Raises an error for anything else."""
    now = _from_levels(value) if "levels" in value else value
    found: MachineSpeeds = _of(MachineSpeeds, {**now, "blocking": _of(Blocking, now["blocking"])})
    return found


def _from_levels(value: Mapping[str, Any]) -> dict[str, Any]:
    """A row that was written when all caches were measured, with the numbers that are still needed."""
    *caches, memory = value["levels"]
    own = [each["nbytes"] for each in value["levels"] if not each["shared"]]
    kept = {name: each for name, each in value.items() if name not in ("levels", "peak_gflops", "wake_us")}
    return {
        **kept,
        "own_cache_bytes": max(own) if own else value["levels"][0]["nbytes"],
        "last_cache_gbs": (caches or [memory])[-1]["read_gbs"],
        "memory_gbs": memory["read_gbs"],
        "team_memory_gbs": memory["team_read_gbs"],
    }


def _of(kind: Any, value: Mapping[str, Any]) -> Any:
    """A dataclass of numbers. Raises ValueError for another set of fields, and for numbers that cannot be."""
    wanted = {field.name: field.type for field in fields(kind)}
    if set(wanted) != set(value):
        raise ValueError(f"{kind.__name__} has the fields {sorted(wanted)}, not {sorted(value)}")
    for name, each in value.items():
        types = _TYPES.get(str(wanted[name]))
        if types is None:
            continue
        if type(each) not in types or (bool not in types and not _LEAST <= each <= _MOST):
            raise ValueError(f"{name} is {each!r:.80}")
    return kind(**value)


_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "bool": (bool,)}
"""The types that a field may have in JSON, by its type in the dataclass."""

MACHINE_SPEEDS: Fact[MachineSpeeds] = Fact("machine_speeds", write_speeds, read_speeds)
