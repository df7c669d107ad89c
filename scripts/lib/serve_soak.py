"""Long runs against `collage serve`: clients that leave, overload, wrong requests, a killed engine.

The server is one that this starts on the loopback address, with a small decoder in numpy or with a model that is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.lib import ROOT, parser_of
from scripts.lib.decoders.byte_tokenizer import SIZE, write_byte_tokenizer
from scripts.lib.processes import descendants

_START_S = 300.0
_ANSWER_S = 120.0
_WARM_S = 5.0
_FLAT_BYTES = 32 << 20
_RUNNING = 32
_AT_ONCE = 100
"""Clients of the first run that are there at a time."""

_DECODER = {"vocabulary": SIZE, "max_length": 512, "block_count": 512, "step_ms": 5.0}


@dataclass
class Server:
    """The server's process."""

    process: subprocess.Popen[bytes]
    port: int
    vocabulary: int

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """One request on a connection of its own. Returns the status and the whole answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(_request(method, path, body))
            answer = await asyncio.wait_for(reader.read(-1), _ANSWER_S)
        finally:
            writer.close()
        head = answer.split(b"\r\n", 1)[0].split()
        return (int(head[1]) if len(head) > 1 else 0), answer

    async def leave(self, body: bytes, seconds: float) -> None:
        """Ask for a stream, read it for some time, and leave."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(_request("POST", "/v1/completions", body))
        end = time.monotonic() + seconds
        try:
            while (left := end - time.monotonic()) > 0:
                if not await asyncio.wait_for(reader.read(4096), left):
                    break
        except (TimeoutError, asyncio.TimeoutError):
            pass
        writer.transport.abort()

    async def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        _, text = await self.ask("GET", "/metrics")
        found = re.search(rf"^collage_{name} (\S+)$", text.decode(), re.MULTILINE)
        return float(found[1]) if found else float("nan")

    async def settles(self, limit_s: float = 30.0) -> bool:
        """Whether all blocks of the cache are free before long."""
        end = time.monotonic() + limit_s
        while await self.metric("cache_blocks_used") or await self.metric("requests_waiting"):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.1)
        return True

    def rss(self) -> int:
        """The memory of the server's and the engine's process, in bytes."""
        processes = (self.process.pid, self.workers()[0])
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes)
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def workers(self) -> list[int]:
        """The ids of the engine's process and of those that share its work."""
        return descendants(self.process.pid)


def _request(method: str, path: str, body: bytes) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Findings:
    """What was found wrong."""

    wrong: list[str] = field(default_factory=list)

    def check(self, good: bool, text: str) -> None:
        """Print a finding, and keep it when it is a bad one."""
        print(f"  {'ok   ' if good else 'WRONG'} {text}", flush=True)
        if not good:
            self.wrong.append(text)


def _body(prompt: list[int], tokens: int, *, stream: bool = True) -> bytes:
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    return json.dumps(body).encode()


Run = Callable[[Server, argparse.Namespace, Findings], Coroutine[Any, Any, None]]


async def clients(server: Server, options: argparse.Namespace, findings: Findings) -> None:
    """Let many clients leave in the middle of their streams."""
    draw = random.Random(options.seed)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def client() -> None:
        async with gate:
            prompt = [draw.randrange(server.vocabulary) for _ in range(draw.randint(1, 100))]
            body = _body(prompt, 100, stream=draw.random() < 0.8)
            await server.leave(body, draw.uniform(0, 1.5))

    await asyncio.gather(*(client() for _ in range(options.clients)))
    findings.check(await server.settles(), f"{options.clients} clients have left; all blocks are free")
    status, _ = await server.ask("GET", "/health")
    findings.check(status == 200, f"health is {status}")


async def overload(server: Server, options: argparse.Namespace, findings: Findings) -> None:
    """Send twice as many requests as the server can answer, and see that it refuses the rest and keeps its memory."""
    draw = random.Random(options.seed)

    def body() -> bytes:
        return _body([draw.randrange(server.vocabulary) for _ in range(draw.randint(8, 64))], 32)

    done = 0
    warm_s = min(_WARM_S, options.seconds)
    end = time.monotonic() + warm_s

    async def closed() -> None:
        nonlocal done
        while time.monotonic() < end:
            status, _ = await server.ask("POST", "/v1/completions", body())
            done += status == 200

    await asyncio.gather(*(closed() for _ in range(_RUNNING + min(options.waiting, _RUNNING // 2))))
    rate = done / warm_s
    print(f"  {rate:.1f} requests/s can be answered; {2 * rate:.1f} are sent for {options.seconds:g} s")
    statuses: Counter[int] = Counter()
    broken = 0

    async def client() -> None:
        nonlocal broken
        try:
            status, answer = await server.ask("POST", "/v1/completions", body())
        except (OSError, TimeoutError, asyncio.TimeoutError):
            status, answer = 0, b""
        statuses[status] += 1
        broken += status == 200 and b"[DONE]" not in answer

    tasks: set[asyncio.Task[None]] = set()
    rss: list[int] = []
    sent = 2 * rate
    start = time.monotonic()
    while (passed := time.monotonic() - start) < options.seconds:
        task = asyncio.create_task(client())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if passed > options.seconds * (len(rss) + 1) / 5:
            rss.append(server.rss())
            if not statuses[429]:  # its rate was that of a slow moment
                sent *= 2
                print(f"  nothing was refused so far; {sent:.1f} requests/s are sent")
        await asyncio.sleep(draw.expovariate(sent))
    await asyncio.gather(*tasks)
    print(f"  answers: {dict(sorted(statuses.items()))}, memory in MiB: {[each >> 20 for each in rss]}")
    findings.check(set(statuses) <= {200, 429} and statuses[429] > 0, "each request is answered or refused with 429")
    findings.check(not broken, f"{broken} streams that began did not end")
    if len(rss) > 1:
        findings.check(rss[-1] - rss[0] < _FLAT_BYTES, "the memory is flat")
    findings.check(await server.settles(), "all blocks are free afterwards")


async def fuzz(server: Server, options: argparse.Namespace, findings: Findings) -> None:
    """Send wrong and strange requests: none may be a fault of the server."""
    draw = random.Random(options.seed)
    gate = asyncio.Semaphore(16)
    statuses: Counter[int] = Counter()

    async def one() -> None:
        async with gate:
            path, body = fuzzed_body(draw, server.vocabulary)
            status, answer = await server.ask("POST", path, body)
            statuses[status] += 1
            if status >= 500 or not status:
                findings.check(False, f"{path} {body[:200]!r}: {answer[-300:]!r}")

    await asyncio.gather(*(one() for _ in range(options.requests)))
    print(f"  answers: {dict(sorted(statuses.items()))}")
    findings.check(await server.settles(), "all blocks are free afterwards")
    status, _ = await server.ask("GET", "/health")
    findings.check(status == 200, f"health is {status}")


async def kill(server: Server, options: argparse.Namespace, findings: Findings) -> None:
    """Kill the engine's process, or one that shares its work, several times while requests are open."""
    for number in range(3):
        asked = [asyncio.create_task(server.ask("POST", "/v1/completions", _body([1], 400))) for _ in range(20)]
        await asyncio.sleep(0.2)
        workers = server.workers()
        os.kill(workers[number % len(workers)], signal.SIGKILL)
        answers = await asyncio.gather(*asked)
        told = all(b'"error"' in answer or b"[DONE]" in answer for _, answer in answers)
        killed = "a worker" if number % len(workers) else "the engine"
        cut = sum(b'"error"' in answer for _, answer in answers)
        findings.check(told and cut > 0, f"{killed} was killed; each of {cut} open requests was told")
        end = time.monotonic() + _START_S
        while (await server.ask("GET", "/health"))[0] != 200 and time.monotonic() < end:
            await asyncio.sleep(0.1)
        status, answer = await server.ask("POST", "/v1/completions", _body([1], 4))
        findings.check(status == 200 and b"[DONE]" in answer, "the next request is answered")


RUNS: dict[str, Run] = {"clients": clients, "overload": overload, "fuzz": fuzz, "kill": kill}

_NAMES = (
    "model prompt max_tokens temperature top_p top_k n stream stream_options logprobs echo stop seed best_of suffix "
    "presence_penalty frequency_penalty logit_bias user stop_token_ids ignore_eos priority timeout_s cache_salt "
    "messages max_completion_tokens top_logprobs response_format tools metadata length_penalty check nonsense "
    "min_p min_tokens repetition_penalty"
).split()


def fuzzed_body(draw: random.Random, vocabulary: int) -> tuple[str, bytes]:
    """A path, and a body for it that is right, or wrong in some fields, or no JSON at all."""
    chat = draw.random() < 0.3
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body: dict[str, Any] = {"model": "m", "max_tokens": draw.randint(1, 8)}
    if chat:
        body["messages"] = [{"role": "user", "content": "x" * draw.randint(0, 20)}]
    else:
        body["prompt"] = [draw.randrange(vocabulary) for _ in range(draw.randint(1, 30))]
    for _ in range(draw.choice((0, 0, 1, 1, 2, 4))):
        body[draw.choice(_NAMES)] = _value(draw, 0)
    data = json.dumps(body).encode()
    if draw.random() < 0.15:
        cut = draw.randrange(len(data))
        data = data[:cut] + draw.randbytes(draw.randint(0, 4)) + data[cut + draw.randint(0, 3) :]
    return path, data


def _value(draw: random.Random, depth: int) -> Any:
    """A number, a text, a flag, nothing, an extreme number, a list or a map."""
    if depth < 3 and draw.random() < 0.25:
        inside = [_value(draw, depth + 1) for _ in range(draw.randint(0, 4))]
        return inside if draw.random() < 0.5 else {draw.choice((*_NAMES, "7", "-1")): each for each in inside}
    text = "".join(chr(draw.choice((65, 10, 0, 228, 0x1F600))) for _ in range(draw.randint(0, 6)))
    extreme = (10**30, 10**400, -(2**63), 1e308, 5e-324, 2**64 - 1, float("nan"), float("inf"), "\ud800")
    kinds = (
        draw.uniform(-3, 3),
        draw.randint(-2, 300),
        text,
        draw.random() < 0.5,
        None,
        draw.choice(extreme),
    )
    return draw.choice(kinds)


@contextmanager
def _started(model: Path, vocabulary: int, options: list[str]) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "collage", "serve", str(model), "--port", "0", "--name", "m", *options],
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stderr is not None
        port = 0
        while not port:
            line = process.stderr.readline().decode()
            if not line:
                raise SystemExit("the server has not started")
            print(f"  {line.strip()}")
            found = re.search(r"http://127.0.0.1:(\d+)/", line)
            port = int(found[1]) if found else 0
        drained = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield Server(process, port, vocabulary)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        drained.wait(timeout=10)
    finally:
        process.kill()
        process.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for. Returns 1 when anything was wrong."""
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="a model to serve; default: a small one in numpy")
    parser.add_argument("--only", choices=RUNS, help="one of the runs instead of all")
    parser.add_argument("--clients", type=int, default=1000, help="clients that leave (default 1000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of overload (default 60)")
    parser.add_argument("--requests", type=int, default=1000, help="fuzzed requests (default 1000)")
    parser.add_argument("--waiting", type=int, default=64, help="requests that may wait (default 64)")
    parser.add_argument("--vocabulary", type=int, default=_DECODER["vocabulary"], help="the model's tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--serve",
        default="",
        metavar="OPTIONS",
        help="more options of `collage serve`, such as '--parallel tensor --processes 2'",
    )
    options = parser.parse_args(arguments)
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="serve-soak-") as folder:
        model = options.model
        if model is None:
            model = Path(folder)
            write_byte_tokenizer(model)
            (model / "reference.json").write_text(json.dumps(_DECODER))
        limits = ["--max-running", str(_RUNNING), "--max-waiting", str(options.waiting)]
        limits += shlex.split(options.serve)
        for name, run in RUNS.items():
            if options.only in (None, name):
                print(f"{name}: {(run.__doc__ or '').splitlines()[0]}", flush=True)
                with _started(model, options.vocabulary, limits) as server:
                    asyncio.run(run(server, options, findings))
    print("OK" if not findings.wrong else f"WRONG: {len(findings.wrong)}")
    return bool(findings.wrong)
