"""The server's end of the engine: starting its process, sending requests, and starting it again when it dies."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import pickle
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from collage.core.child_process import command_for, signal_name
from collage.errors import CollageError
from collage.serve.http.messages import (
    HEADER,
    Batch,
    Cancel,
    EngineSetup,
    ModelReady,
    NotReady,
    Stop,
    Submit,
    packed,
)
from collage.serve.request import Event, Finish, RefusedError, Request, Stats

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 5.0
_END_S = 5.0
_LONGEST_RETRY_S = 60
_STALL_S = 300.0
_SLOWEST_LOAD = 10
"""How many times as long as the first process one that is started again may take to load the model."""


class DownError(Exception):
    """The engine's process is not there at the moment."""


class Link:
    """The engine's process, as the server sees it. It is used in one event loop.

    ``observe`` is called with each batch of events, and ``died`` when the process has ended by itself.
    A process that sends nothing for ``stall_s`` seconds though it has requests is killed, and started again. So is one
    that was started again and takes far longer than the first one to load the model, and ``stall_s`` more.
    """

    def __init__(
        self,
        setup: EngineSetup,
        observe: Callable[[Batch], None],
        died: Callable[[], None] = lambda: None,
        stall_s: float = _STALL_S,
    ) -> None:
        self._setup = setup
        self._observe = observe
        self._died = died
        self._stall_s = stall_s
        self._load_s = math.inf
        self._heard_s = time.monotonic()
        self._stalled = False
        self._watch: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._sinks: dict[int, asyncio.Queue[Event]] = {}
        self._ids = itertools.count()
        self._ends: deque[float] = deque(maxlen=64)
        self._stopping = False
        self.sizes: ModelReady | None = None
        self.stats = Stats()
        self.problem = ""
        """Why the engine cannot be started again at the moment, "" if nothing is known to be wrong."""

    async def start(self) -> ModelReady:
        """Start the process and wait until the model is loaded. Raises CollageError when it cannot be."""
        begun_s = time.monotonic()
        reader, ready = await self._begin()
        self._load_s = self._stall_s + _SLOWEST_LOAD * (time.monotonic() - begun_s)
        self._task = asyncio.create_task(self._run(reader))
        self._task.add_done_callback(self._broken)
        self._watch = asyncio.create_task(self._watched())
        return ready

    @property
    def up(self) -> bool:
        return self._writer is not None

    def new_id(self) -> int:
        return next(self._ids)

    def submit(self, requests: list[Request], sink: asyncio.Queue[Event]) -> None:
        """Send requests, all or none; their events go into the queue. Raises RefusedError and DownError."""
        if self._writer is None or self.sizes is None:
            raise DownError
        if len(self._sinks) + len(requests) > self.sizes.most_open:
            raise RefusedError
        if not self._sinks:
            self._heard_s = time.monotonic()
        self._sinks.update((each.id, sink) for each in requests)
        self._writer.write(packed(Submit(tuple(requests))))

    def cancel(self, ids: Iterable[int]) -> None:
        """Let requests go. They count as open until the engine has freed what they held."""
        known = tuple(each for each in ids if each in self._sinks)
        if known and self._writer is not None:
            self._sinks.update(dict.fromkeys(known, asyncio.Queue()))  # nobody reads their last events
            self._writer.write(packed(Cancel(known)))

    def retry_after_s(self) -> int:
        """After how many seconds there is likely to be room, by how fast requests have ended lately."""
        if len(self._ends) < 2:
            return 1
        per_s = len(self._ends) / max(time.monotonic() - self._ends[0], 1e-3)
        return max(1, min(_LONGEST_RETRY_S, math.ceil(self.stats.waiting / per_s)))

    def fail_all(self, finish: Finish, message: str) -> None:
        for id, sink in self._sinks.items():
            sink.put_nowait(Event(id, finish=finish, error=message))
        self._sinks.clear()

    async def stop(self) -> None:
        """End the process: by a message, and by force when it does not end soon."""
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
        if self._writer is not None:
            self._writer.write(packed(Stop()))
        if self._task is not None:
            done, _ = await asyncio.wait({self._task}, timeout=_END_S)
            if not done:
                self._task.cancel()
        self._kill()
        if self._writer is not None:
            self._writer.close()

    async def _begin(self) -> tuple[asyncio.StreamReader, ModelReady]:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command_for("collage.serve.http.worker", theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(packed(self._setup))
        model = self._setup.model
        try:
            message = await asyncio.wait_for(_read(reader), self._load_s)
        except asyncio.TimeoutError as error:  # an OSError since Python 3.11
            writer.close()
            await asyncio.to_thread(self._kill)
            raise CollageError(f"the engine's process has not loaded {model} in {self._load_s:.3g} s.") from error
        except (EOFError, OSError) as error:
            writer.close()
            how = await asyncio.to_thread(self._end)
            raise CollageError(f"the engine's process ended while it loaded {model} ({how}).") from error
        if isinstance(message, NotReady):
            writer.close()
            await asyncio.to_thread(self._end)
            failed = CollageError(message.message)
            failed.exit_code = message.exit_code
            raise failed
        assert isinstance(message, ModelReady)
        self._writer, self.sizes = writer, message
        return reader, message

    async def _run(self, reader: asyncio.StreamReader) -> None:
        while True:
            await self._receive(reader)
            if self._writer is not None:
                self._writer.close()
            self._writer = None
            reason = await asyncio.to_thread(self._end)
            if self._stalled:
                reason = f"it did nothing for {self._stall_s:g} s"
                self._stalled = False
            if self._stopping:
                return
            self._died()
            logger.warning("the engine's process has ended (%s); starting another one", reason)
            self.fail_all(Finish.FAILED, f"the engine's process has ended ({reason}); try again.")
            again = await self._begin_again()
            if again is None:
                return
            reader = again

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Hand out events until the process ends."""
        while True:
            try:
                message = await _read(reader)
            except (EOFError, OSError, pickle.UnpicklingError):
                return
            assert isinstance(message, Batch)
            self._heard_s = time.monotonic()
            self.stats = message.stats
            self._observe(message)
            for event in message.events:
                sink = self._sinks.get(event.id)
                if sink is None:
                    continue
                if event.finish is not None:
                    del self._sinks[event.id]
                    self._ends.append(time.monotonic())
                sink.put_nowait(event)

    async def _watched(self) -> None:
        """Kill a process that does nothing; whoever reads from it then starts another one."""
        while True:
            await asyncio.sleep(min(self._stall_s / 4, _LONGEST_PAUSE_S))
            if self.up and self._sinks and time.monotonic() - self._heard_s > self._stall_s:
                self._stalled = True
                self._heard_s = time.monotonic()
                assert self._process is not None
                self._process.kill()

    def _broken(self, task: asyncio.Task[None]) -> None:
        """Leave nobody waiting when a fault of ours has ended the task that reads."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the link to the engine has failed", exc_info=error)
            self._writer = None
            self.problem = f"the link to the engine has failed: {type(error).__name__}"
            self.fail_all(Finish.FAILED, "a fault in the server; start it again.")

    async def _begin_again(self) -> asyncio.StreamReader | None:
        pause_s = 0.1
        while not self._stopping:
            try:
                reader = (await self._begin())[0]
                self.problem = ""
                return reader
            except (CollageError, OSError) as error:
                self.problem = f"the engine does not start again: {error}"
                logger.warning("the engine does not start again: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _end(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return "it closed its connection"
        return f"killed by {signal_name(-code)}" if code < 0 else f"exit status {code}"

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


async def _read(reader: asyncio.StreamReader) -> Any:
    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return pickle.loads(await reader.readexactly(size))
