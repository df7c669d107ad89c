"""The other processes of a decoder, as the first one sees them: starting, telling, watching and ending them.

There are two planes. Control messages go to each process over a socket of its own, and tensors between all processes
over ``tensors``. A process that has ended closes its socket, which is noticed at once, also while nothing runs.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.core.child_process import ChannelError, command_for, read_message, signal_name, write_message
from collage.errors import CollageError
from collage.native.team import one_of_each_core_first
from collage.serve.parallel.options import Parallelism
from collage.serve.parallel.tensors import GlooTensors, PeerLostError, Tensors, check_torch, load_torch
from collage.serve.parallel.worker import DecoderLoaded, Failed, Meet, RankReady, RankSetup, RankStop
from collage.serve.runner import RunnerLostError

logger = logging.getLogger(__name__)

_LOADING_S = 600.0
_END_S = 5.0
_REASON_S = 1.0


class Crew:
    """Processes 1 to N - 1 of a decoder, whose process 0 is this one."""

    def __init__(self, setup: RankSetup, threads: int) -> None:
        """Start the processes, which begin to load. Raises CollageError without torch."""
        check_torch()
        self._parallelism = setup.parallelism
        self._folder = Path(tempfile.mkdtemp(prefix="collage-meeting-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._lost = ""
        self._closing = False
        self._watcher: threading.Thread | None = None
        self.meeting = self._folder / "meeting"
        self.when_lost: Callable[[], None] = lambda: None
        """What is called when a process is gone, in a thread of the crew's."""
        try:
            for rank in range(1, setup.parallelism.processes):
                cpus = own_cpus(rank, threads, setup.parallelism)
                self._start(replace(setup, rank=rank, meeting=self.meeting, cpus=cpus))
        except BaseException:
            self.close()
            raise

    def _start(self, setup: RankSetup) -> None:
        ours, theirs = socket.socketpair()
        self._sockets.append(ours)
        # A process that does not read is noticed when its buffer is full, too.
        limit = struct.pack("ll", int(self._parallelism.answer_s) + 1, 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        with theirs:
            self._processes.append(
                subprocess.Popen(
                    command_for("collage.serve.parallel.worker", theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        write_message(ours.fileno(), setup)

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._processes]

    def meet(self) -> Tensors:
        """Wait until all have loaded, and connect with them. Raises CollageError."""
        load_torch()
        try:
            self._await(DecoderLoaded)
            self.tell(Meet())
            limit_s = self._parallelism.answer_s
            return GlooTensors(0, self._parallelism.processes, self.meeting, limit_s)
        except PeerLostError as error:
            raise CollageError(f"the processes of the decoder cannot be connected: {error}.") from error

    def begin(self) -> None:
        """Wait until all take iterations, and watch them from now on. Raises CollageError."""
        self._await(RankReady)
        self._watcher = threading.Thread(target=self._watch, name="collage-crew", daemon=True)
        self._watcher.start()

    def tell(self, message: object) -> None:
        """Send a control message to all. Raises RunnerLostError if one is gone."""
        if self._lost:
            raise RunnerLostError(self._lost)
        for each in self._sockets:
            try:
                write_message(each.fileno(), message)
            except OSError as error:
                raise self.lost() from error

    def lost(self, reason: str = "") -> RunnerLostError:
        """The error for a process that is gone or does not answer, or for another ``reason``. All processes are ended.

        It has the first reason that there was.
        """
        end = time.monotonic() + _REASON_S
        while not (reason or self._lost) and time.monotonic() < end:
            time.sleep(0.01)  # the watcher will know how it ended
        self._give_up(reason or self._silence())
        return RunnerLostError(self._lost)

    def _silence(self) -> str:
        """Why nothing comes from a process, where the watcher does not know it yet."""
        for rank, each in enumerate(self._processes, 1):
            if each.poll() is not None:
                return self._end(rank)
        limit_s = self._parallelism.answer_s
        return f"a process of the decoder has not answered for {limit_s:g} s; it was ended"

    def close(self) -> None:
        """End the processes: by a message, and by force when they do not end soon."""
        self._closing = True
        if not self._lost:
            for each in self._sockets:
                try:
                    write_message(each.fileno(), RankStop())
                except OSError:
                    continue
            end = time.monotonic() + _END_S
            while time.monotonic() < end and any(each.poll() is None for each in self._processes):
                time.sleep(0.01)
        self._kill()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        for each in self._sockets:
            each.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await(self, kind: type[DecoderLoaded] | type[RankReady]) -> None:
        """Wait for a message from each. Raises CollageError if one sends another one, or none."""
        for rank, each in enumerate(self._sockets, 1):
            try:
                message = read_message(each.fileno(), _LOADING_S)
            except TimeoutError as error:
                raise CollageError(f"process {rank} of the decoder has not loaded it in {_LOADING_S:g} s.") from error
            except (EOFError, OSError, ChannelError) as error:
                raise CollageError(f"{self._end(rank)} while it loaded the decoder.") from error
            if isinstance(message, Failed):
                raise CollageError(message.message)
            assert isinstance(message, kind)

    def _watch(self) -> None:
        """Wait until a process says that it has failed, or is gone."""
        ranks = {each.fileno(): rank for rank, each in enumerate(self._sockets, 1)}
        poll = select.poll()
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN)
        while not self._closing and not self._lost:
            for descriptor, _ in poll.poll(200):
                if self._closing:
                    return
                self._give_up(self._why(ranks[descriptor], descriptor))
                self.when_lost()
                return

    def _why(self, rank: int, descriptor: int) -> str:
        try:
            message: Any = read_message(descriptor, _REASON_S)
        except (EOFError, OSError, ChannelError, TimeoutError):
            return self._end(rank)
        return f"process {rank} of the decoder has failed: {getattr(message, 'message', message)}"

    def _end(self, rank: int) -> str:
        process = self._processes[rank - 1]
        try:
            code = process.wait(_REASON_S)
        except subprocess.TimeoutExpired:
            return f"process {rank} of the decoder has closed its connection"
        how = f"killed by {signal_name(-code)}" if code < 0 else f"exit status {code}"
        return f"process {rank} of the decoder has ended ({how})"

    def _give_up(self, reason: str) -> None:
        """Note the first reason, and end all processes: none is of use without the others."""
        with self._lock:
            if self._lost or self._closing:
                return
            self._lost = reason
        logger.warning("%s", reason)
        self._kill()

    def _kill(self) -> None:
        for each in self._processes:
            if each.poll() is None:
                each.kill()
        for each in self._processes:
            each.wait()


def own_cpus(rank: int, threads: int, parallelism: Parallelism) -> tuple[int, ...]:
    """Processors of its own for a process, if there are as many; teams of threads pin theirs to them.

    The team of process 0, which may run on all, takes the first ones in this order.
    """
    found = one_of_each_core_first(os.sched_getaffinity(0))
    if threads == 1 or len(found) < threads * parallelism.processes:
        return ()
    return tuple(found[rank * threads : (rank + 1) * threads])


def _has_descriptor(stream: Any) -> bool:
    try:
        return stream is not None and stream.fileno() >= 0
    except (OSError, ValueError, AttributeError):
        return False
