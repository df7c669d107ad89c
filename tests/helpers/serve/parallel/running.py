"""Runs decoders on several processes in tests, and tells whether the processes have ended."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from collage.serve import Engine, EngineOptions, Sampling
from collage.serve.model import open_runner
from collage.serve.parallel.options import Parallelism
from collage.serve.parallel.runner import ParallelRunner

BLOCKS = 24


@contextmanager
def running(path: Path, kind: str, processes: int = 2, answer_s: float = 60.0) -> Iterator[ParallelRunner]:
    runner = open_runner(path, BLOCKS, parallelism=Parallelism(kind, processes, answer_s))
    assert isinstance(runner, ParallelRunner)
    pids = runner.pids
    try:
        yield runner
    finally:
        runner.close()
        wait_until_gone(pids)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until_gone(pids: list[int], limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while any(map(alive, pids)):
        assert time.monotonic() < end, "a process is left"
        time.sleep(0.02)


PROMPTS = [tuple(random.Random(n).choices(range(256), k=3 + 17 * n)) for n in range(5)]


def answers(runner: object, options: EngineOptions) -> list[tuple[int, ...]]:
    with Engine(runner, options) as engine:  # type: ignore[arg-type]
        streams = [
            engine.submit(prompt, Sampling(max_tokens=10 + 7 * n, temperature=0, ignore_eos=True))
            for n, prompt in enumerate(PROMPTS)
        ]
        found = [each.result().tokens for each in streams]
    engine.check()
    return found
