"""What the GPU is like now: its clocks under load, and the memory that it has left. A process of its own looks.

So a compile that needs no GPU, or none yet, takes nothing of its memory. ``gpu_now`` is the parent's side.
"""

from __future__ import annotations

import logging
import subprocess

from collage.core.child_process import ChildError, ChildProcess, read_message, take_over_pipes, write_message
from collage.core.cuda_driver import CudaError, free_memory
from collage.core.machine_lock import machine_lock
from collage.kernel.device_clock import clocks_at_work
from collage.measure_db.doubt import GpuNow

log = logging.getLogger(__name__)

_LIMIT_S = 60.0
_TIMES = 150
"""The GPU works for some 0.3 s, in which clocks rise that it has lowered."""


def gpu_now() -> GpuNow:
    """What the GPU is like now. Nothing is raised: where no GPU answers, nothing is known."""
    try:
        child = ChildProcess(__name__, subprocess.DEVNULL)
    except OSError as error:
        log.info("the GPU was not asked: %s", error)
        return GpuNow()
    try:
        found = child.ask(None, _LIMIT_S)
    except (ChildError, TimeoutError) as error:
        log.info("the GPU does not answer: %s", error)
        return GpuNow()
    finally:
        child.kill()
    assert isinstance(found, GpuNow)
    return found


def main() -> None:
    """Answer one message of the parent. Others that measure wait meanwhile."""
    source, sink = take_over_pipes()
    read_message(source)
    free_bytes, found = free_memory(), None
    if free_bytes is not None:
        try:
            with machine_lock():
                found = clocks_at_work(_TIMES)
        except (OSError, CudaError, MemoryError) as error:
            log.info("the GPU's clocks are not known: %s", error)
    write_message(sink, GpuNow(free_bytes, found))
