"""Model folders with the reference decoder, its answers alone, and a real server process in front of it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from collage.serve.reference import ReferenceConfig, ReferenceRunner
from collage.serve.runner import Slice
from scripts.lib.decoders.byte_tokenizer import SIZE, write_byte_tokenizer

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ReferenceConfig(vocabulary=SIZE, max_length=256, block_count=128)


def write_folder(folder: Path, config: ReferenceConfig, *, tokenizer: bool = True) -> Path:
    """A model's folder: the decoder, and a tokenizer whose tokens are bytes, with three special ones."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reference.json").write_text(json.dumps(asdict(config)))
    if tokenizer:
        write_byte_tokenizer(folder)
    return folder


@lru_cache(maxsize=4)
def _alone(config: ReferenceConfig) -> ReferenceRunner:
    whole = replace(config, block_tokens=config.max_length, block_count=1, max_tokens=config.max_length, step_ms=0.0)
    return ReferenceRunner(whole)


@lru_cache(maxsize=1000)
def greedy(config: ReferenceConfig, prompt: tuple[int, ...], count: int, end: int | None) -> tuple[int, ...]:
    """The greedy answer, computed anew from the whole sequence for each token, up to an end token."""
    tokens = list(prompt)
    for _ in range(count):
        logits = _alone(config).step([Slice(tuple(tokens), 0, (0,), True)])
        tokens.append(int(np.argmax(logits[0])))
        if tokens[-1] == end:
            break
    return tuple(tokens[len(prompt) :])


@dataclass
class Served:
    """A server process."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
        """One request. A body that is no bytes is sent as JSON. Returns status, headers and the answer."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with closing(self.connect()) as connection:
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
        json_body = headers.get("content-type", "").startswith("application/json")
        return response.status, headers, json.loads(text) if json_body else text.decode()

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        text = self.ask("GET", "/metrics")[2]
        found = re.search(rf"^collage_{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def wait_for(self, name: str, value: float, limit_s: float = 20.0) -> None:
        """Wait until a metric has a value."""
        end = time.monotonic() + limit_s
        while (found := self.metric(name)) != value:
            assert time.monotonic() < end, f"{name} is {found}, not {value}"
            time.sleep(0.02)

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait. Returns the exit status."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(timeout=60)


@contextmanager
def served(folder: Path, *options: str, limit_s: float = 60, before: Sequence[str] = ()) -> Iterator[Served]:
    """Start ``collage serve`` of a folder or file on a free port, which takes ``limit_s`` seconds at most, and end it.

    ``before`` is a command that becomes the server.
    """
    log = folder.parent / f"{folder.name}-{time.monotonic_ns()}.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                *(*before, sys.executable, "-m", "collage", "serve", str(folder), "--port", "0"),
                *("--name", "m", *options),
            ],
            stderr=stream,
            text=True,
            cwd=ROOT,
        )
    try:
        end = time.monotonic() + limit_s
        while not (found := re.search(r"serving m at http://127.0.0.1:(\d+)/v[12]", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield Served(process, int(found[1]), log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
