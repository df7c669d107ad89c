"""How long a message takes between two processes, and what the kernel counts on the loopback interface."""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.core.child_process import ChildProcess, read_message, take_over_pipes, write_message
from collage.serve.parallel.tensors import GlooTensors, exchange

_FLOATS = (1, 1 << 20)
_ROUNDS = 60
_LIMIT_S = 60.0


@dataclass(frozen=True)
class Wire:
    """An exchange of messages between two processes takes ``exchange_us`` and ``us_a_byte`` for each byte of one."""

    exchange_us: float
    us_a_byte: float

    def us(self, nbytes: float) -> float:
        """The time of an exchange in which each process sends so many bytes."""
        return self.exchange_us + nbytes * self.us_a_byte


def measure_wire() -> Wire:
    """Exchange small and large messages with another process."""
    with tempfile.TemporaryDirectory() as folder:
        child = ChildProcess("scripts.lib.parallel.wire", stderr=2)
        try:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(1) as pool:
                theirs = pool.submit(child.ask, Path(folder) / "meeting", _LIMIT_S)
                small, large = _exchange(0, Path(folder) / "meeting")
                theirs.result()
        finally:
            child.kill()
    return Wire(small, (large - small) / (4 * _FLOATS[1]))


def _exchange(rank: int, meeting: Path) -> list[float]:
    tensors = GlooTensors(rank, 2, meeting, _LIMIT_S)
    found = []
    for count in _FLOATS:
        out, into = np.zeros(count, np.float32), np.zeros(count, np.float32)
        times = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            exchange(tensors, {1 - rank: out}, {1 - rank: into})
            times.append(1e6 * (time.perf_counter() - began))
        found.append(statistics.median(times[_ROUNDS // 4 :]))
    tensors.close()
    return found


def loopback_bytes() -> int | None:
    """The bytes that the loopback interface has carried, or None where the system does not tell."""
    try:
        found = re.search(r"^\s*lo:\s*(\d+)", Path("/proc/net/dev").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def main() -> None:
    """Be the other process."""
    source, sink = take_over_pipes()
    write_message(sink, _exchange(1, read_message(source)))
