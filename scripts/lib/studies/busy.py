"""The slowdown of Collage and OpenVINO while another process keeps a core busy."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.bench.compiled import Options, compile_to
from collage.bench.engines import OURS, prepare
from collage.bench.race import race
from collage.core.progress import Progress

PEER = "openvino"

# Each byte makes it begin or end; with the pipe it ends for good, however we do.
_SPIN = """
import os, select
while os.read(0, 1):
    while not select.select([0], [], [], 0)[0]:
        for _ in range(10**5):
            pass
    os.read(0, 1)
"""


def slowdown(model: Path, options: Options, show: Callable[[Progress], None]) -> dict[str, Any]:
    """Timings alone and beside a busy process, in turns, and the ratio of both."""
    with tempfile.TemporaryDirectory(prefix="collage-busy-") as folder, busy_core() as busy:
        compiled = compile_to(Path(folder) / "module.collage", model, options, show)
        setup = prepare(model, threads=options.threads)
        alone = {
            OURS: replace(setup, engine=OURS, path=str(compiled.file)),
            PEER: replace(setup, engine=PEER),
        }
        beside = {_beside(name): one for name, one in alone.items()}
        found = race(alone | beside, beside=dict.fromkeys(beside, busy), rounds=options.rounds, progress=show)
    both = [name for name in alone if {name, _beside(name)} <= found.timings.keys()]
    return {
        "model": model.name,
        "quiet": {name: found.timings[name] for name in both},
        "busy": {name: found.timings[_beside(name)] for name in both},
        "slowdown": {name: round(found.ratio(_beside(name), name), 3) for name in both},
        "mix": compiled.mix,
        "failed": dict(found.failed),
    }


def _beside(name: str) -> str:
    return f"{name} beside a busy core"


@contextmanager
def busy_core() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A process that keeps a core busy, whichever the system chooses, while the context that this gives is entered."""
    # A session of its own: Ctrl-C is for us alone.
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _SPIN], stdin=subprocess.PIPE, start_new_session=True, bufsize=0
    )
    stdin = process.stdin
    assert stdin is not None

    @contextmanager
    def computing() -> Iterator[None]:
        stdin.write(b"+")
        try:
            yield
        finally:
            stdin.write(b"-")

    try:
        yield computing
    finally:
        process.kill()
        process.wait()
        stdin.close()
