"""The memory that a compile takes: that of its process and of the processes that it starts, by stage."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from collage.bench.compiled import Options, compile_to
from collage.core.progress import Progress
from collage.frontend.proto_size import about_bytes
from scripts.lib.processes import descendants, private_bytes

_EVERY_S = 0.1


@dataclass
class Watch:
    """Samples the memory of this process and of its descendants in a thread, for the ``stage`` of the moment.

    ``peaks`` has the most of a stage in bytes: of this process, of the largest other one, and of all together. Only
    private memory counts: what several processes map of a file is there once, and the system takes it back.
    """

    stage: str = "start"
    peaks: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sample within the block."""
        thread = threading.Thread(target=self._sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _sample(self) -> None:
        last = time.perf_counter()
        ended = False
        while not ended:
            ended = self._ended.wait(_EVERY_S)
            stage = self.stage
            own, others = private_bytes(os.getpid()), [private_bytes(pid) for pid in descendants(os.getpid())]
            found = own, max(others, default=0), own + sum(others)
            known = self.peaks.get(stage, (0, 0, 0))
            self.peaks[stage] = (max(known[0], found[0]), max(known[1], found[1]), max(known[2], found[2]))
            now = time.perf_counter()
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - last
            last = now


def memory(
    model: Path, show: Callable[[Progress], None], *, threads: int, budget_s: float | None, quick: bool
) -> dict[str, Any]:
    """Compile the model into an empty database, and tell the most memory of each stage in bytes."""
    watch = Watch()

    def shown(progress: Progress) -> None:
        watch.stage = progress.stage
        show(progress)

    with tempfile.TemporaryDirectory(prefix="collage-memory-") as name:
        folder = Path(name)
        fresh = Options(threads, 0, str(folder / "db.sqlite"))
        file = folder / "module.collage"
        with watch.watching():
            arguments: Mapping[str, Any] = {"quick": quick, "budget_s": budget_s}
            made = compile_to(file, model, fresh, shown, **arguments)
        module_bytes = file.stat().st_size
    return {
        "model": model.name,
        "weight_bytes": about_bytes(onnx.load(str(model), load_external_data=False)),
        "module_bytes": module_bytes,
        "compile_s": round(made.report.compile_s, 1),
        "peak_bytes": max(all_ for *_, all_ in watch.peaks.values()),
        "stages": [
            {
                "stage": stage,
                "seconds": round(watch.seconds[stage], 1),
                "own_bytes": own,
                "largest_bytes": other,
                "all_bytes": all_,
            }
            for stage, (own, other, all_) in watch.peaks.items()
        ],
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """A line for a result: the most memory, and how many times the weights that is."""
    weights, peak = result["weight_bytes"], result["peak_bytes"]
    return [
        f"{result['model']}: {peak / 1e9:.1f} GB at most, {peak / weights:.1f} times its weights of "
        f"{weights / 1e9:.2f} GB; {result['compile_s']:.0f} s"
    ]
