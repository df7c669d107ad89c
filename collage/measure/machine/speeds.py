"""The machine's speeds: measured in the worker once, then remembered."""

from __future__ import annotations

import logging
from dataclasses import asdict, astuple, replace
from typing import Any

from collage.core.typed import typed
from collage.errors import MeasurementError
from collage.kernel.machine_speeds import WRITTEN_DOWN, MachineSpeeds
from collage.kernel.target import Target
from collage.measure.worker.process import WorkerDiedError, Workers
from collage.measure.worker.protocol import MeasureSpeeds
from collage.measure_db.database import Database
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


def read_speeds(value: Any) -> MachineSpeeds:
    """Speeds of a row. Raises an error for anything else, and for numbers that cannot be."""
    found = typed(MachineSpeeds, value)
    if not value["measured"]:
        raise ValueError("they were not measured")
    for each in (*astuple(found)[:-2], *astuple(found.blocking)):
        if not _LEAST <= each <= _MOST:
            raise ValueError(f"{each!r:.80} is no speed")
    return found


MACHINE_SPEEDS: Fact[MachineSpeeds] = Fact("machine_speeds", asdict, read_speeds)
