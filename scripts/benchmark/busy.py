"""Beside somebody else: how much slower Collage and OpenVINO get while another process keeps a core busy."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.bench import OURS, prepare
from collage.progress import Progress
from collage.race import race

from .compiled import Options, compile_to

PEER = "openvino"

# It ends when its parent does, however that ends.
_SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(10**6):
        pass
"""


def slowdown(model: Path, options: Options, show: Callable[[Progress], None]) -> dict[str, Any]:
    """Timings in a quiet race and a busy one, and the ratio of their medians."""
    with tempfile.TemporaryDirectory(prefix="collage-busy-") as folder:
        compiled = compile_to(Path(folder) / "module.collage", model, options, show)
        setup = prepare(model, threads=options.threads)
        setups = {
            OURS: replace(setup, engine=OURS, path=str(compiled.file)),
            PEER: replace(setup, engine=PEER),
        }
        quiet = race(setups, rounds=options.rounds, progress=show)
        with busy_core():
            busy = race(setups, rounds=options.rounds, progress=show)
    both = [name for name in quiet.timings if name in busy.timings]
    return {
        "model": model.name,
        "quiet": dict(quiet.timings),
        "busy": dict(busy.timings),
        "slowdown": {
            name: round(busy.timings[name]["median_us"] / quiet.timings[name]["median_us"], 3)
            for name in both
        },
        "mix": compiled.mix,
        "failed": {**quiet.failed, **busy.failed},
    }


@contextmanager
def busy_core() -> Iterator[None]:
    """A process that computes all the time, on whichever core the system gives it."""
    # A session of its own: Ctrl-C is for us alone.
    process = subprocess.Popen([sys.executable, "-S", "-c", _SPIN], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()
