"""The runtime of a plan: one process a device, each with its static list of passes, on torch.distributed's gloo."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as LateError
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any

from collage.core.library_text import library_text
from collage.core.threads import in_thread
from collage.errors import CollageError, UsageError
from collage.graphpipe.checkpoint import Checkpoints
from collage.graphpipe.graph import BlockGraph
from collage.graphpipe.plan import Plan
from collage.graphpipe.profile import edges
from collage.graphpipe.schedule import Action, Pass, static_actions
from collage.graphpipe.stages import SleepStage, StageWork, TorchStage, sleep_values, sleep_wires, torch_wires
from collage.graphpipe.trace import Value
from collage.graphpipe.training import Training
from collage.graphpipe.wiring import Message, Wiring, check_fit

Progress = Callable[[int, float, float], None]

_GLOO_SOURCE = re.compile(r"\[/\S+?:\d+\] ")
_PATIENCE_S, _WATCH_S = 2.0, 0.2
AHEAD = 3
"""The passes whose messages are waited for in advance, besides the next one."""


@dataclass(frozen=True)
class Ended:
    """The results of a run: the loss of each step, and the seconds of each iteration on this rank."""

    first_step: int
    losses: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def iteration_s(self) -> float:
        """The median seconds of an iteration; the first one warms up."""
        return median(self.seconds[1:] or self.seconds)


class Peers:
    """This process among the others of a run, by torchrun's environment variables.

    Whatever waits for another process longer than ``limit_s`` seconds, or for one that is gone, raises CollageError.
    """

    def __init__(self, ranks: Sequence[Sequence[int]], limit_s: float) -> None:
        """Meet the others, and make a group for each stage of several ranks. Raises CollageError."""
        self.rank, self.size = rank_and_size()
        self.limit_s = limit_s
        wanted = sum(map(len, ranks))
        if self.size != wanted:
            raise UsageError(f"the plan is for {wanted} processes, one a device, and there are {self.size}.")
        import torch.distributed as dist

        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        limit = timedelta(seconds=limit_s)

        def meet() -> list[Any]:
            dist.init_process_group("gloo", timeout=limit)
            return [dist.new_group([*each], timeout=limit) if len(each) > 1 else None for each in ranks]

        start = time.monotonic()
        try:
            with _without_stderr():  # gloo writes to it
                self._groups = in_thread(meet).result(limit_s)  # some of gloo's waits have no limit
        except (RuntimeError, ValueError, TimeoutError, LateError) as error:
            within = f" within {limit_s:g} s" if time.monotonic() - start >= limit_s else ""
            raise CollageError(
                f"rank {self.rank}: the {self.size} processes have not met{within}; one has never started, or is gone."
            ) from error
        self._wait_ends = float("inf")
        threading.Thread(target=self._watch, name="collage-graphpipe-watch", daemon=True).start()

    def _watch(self) -> None:
        """End the process if it waits for others for longer than gloo should let it."""
        while time.monotonic() < self._wait_ends + _PATIENCE_S:
            time.sleep(_WATCH_S)
        print(f"rank {self.rank}: another rank has not answered for {self.limit_s:g} s.", file=sys.stderr, flush=True)
        os._exit(1)

    @contextmanager
    def waiting(self, who: str) -> Iterator[None]:
        """Raise CollageError for errors of a transfer with others."""
        self._wait_ends = time.monotonic() + self.limit_s
        try:
            yield
        except RuntimeError as error:
            text = library_text(_GLOO_SOURCE.sub("", str(error)).split(". ")[0].rstrip("."), 120)
            late = "timed out" in text.lower() or "timeout" in text.lower()
            how = f"{who} has not answered for {self.limit_s:g} s" if late else f"{who} is gone"
            raise CollageError(f"rank {self.rank}: {how} ({text}).") from error
        finally:
            self._wait_ends = float("inf")

    def send(self, tensor: Any, to: int, tag: int) -> Any:
        """Begin to send a contiguous tensor, which must stay until the work is waited for."""
        import torch.distributed as dist

        with self.waiting(f"rank {to}"):
            return dist.isend(tensor, to, tag=tag)

    def receive(self, tensor: Any, source: int, tag: int) -> Any:
        """Begin to fill a contiguous tensor."""
        import torch.distributed as dist

        with self.waiting(f"rank {source}"):
            return dist.irecv(tensor, source, tag=tag)

    def add_up(self, tensors: Sequence[Any], stage: int | None = None) -> None:
        """Add up tensors over the ranks of a stage, or over all, in place; one all-reduce for each type."""
        import torch
        import torch.distributed as dist

        if stage is not None and self._groups[stage] is None:
            return
        with self.waiting("another rank"):
            for dtype in dict.fromkeys(each.dtype for each in tensors):
                alike = [each for each in tensors if each.dtype == dtype]
                flat = torch.cat([each.reshape(-1) for each in alike]) if len(alike) > 1 else alike[0].reshape(-1)
                dist.all_reduce(flat, group=None if stage is None else self._groups[stage])
                for each, part in zip(alike, flat.split([each.numel() for each in alike]), strict=True):
                    each.copy_(part.view_as(each))


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Without what libraries write to the descriptor of stderr."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def rank_and_size() -> tuple[int, int]:
    """The rank of this process, and the number of processes, by torchrun's environment. Raises UsageError."""
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError) as error:
        raise UsageError("RANK and WORLD_SIZE are not in the environment; start with torchrun.") from error


@dataclass(frozen=True)
class _Posted:
    """Tensors that a pass waits for, by value and sender's stage; messages fill them."""

    tensors: Mapping[tuple[str, int], Any]
    works: Sequence[tuple[Message, Any]]


class Engine:
    """The iterations of a rank. With ``clip_norm`` the norm of all gradients together is that at most."""

    def __init__(
        self, peers: Peers, wiring: Wiring, work: StageWork, values: Mapping[str, Value], clip_norm: float | None
    ) -> None:
        self._peers, self._wiring, self._work, self._values = peers, wiring, work, values
        self._clip_norm = clip_norm
        self._stage, self._number = wiring.place(peers.rank)
        self._actions = static_actions(wiring.plan)[self._stage]
        self._sends: dict[Action, list[tuple[Message, Any, Any]]] = {}
        self._iteration = 0

    def iteration(self) -> float:
        """Run an iteration, whose inputs are ready, and return its loss. Raises CollageError if a process is gone."""
        import torch

        self._iteration += 1
        posted: list[_Posted] = []
        for at, action in enumerate(self._actions):
            posted += map(self._post, self._actions[len(posted) : at + AHEAD + 1])
            found = self._received(posted[at], action)
            posted[at] = _Posted({}, ())
            if action.kind is Pass.FORWARD:
                samples = self._wiring.samples(self._peers.rank, action.index)
                given = self._work.forward(action.index, samples, found)
            else:
                given = self._work.backward(action.index, found)
                self._sent(Action(Pass.FORWARD, action.index), by_grad=True)
            self._send(action, given)
        for action in [*self._sends]:
            self._sent(action)
        grads = self._work.grads()
        self._peers.add_up(grads, self._stage)
        if self._clip_norm is not None:
            self._clip(grads, self._clip_norm)
        loss = torch.tensor([self._work.update()], dtype=torch.float64)
        self._peers.add_up([loss])
        return float(loss)

    def _clip(self, grads: Sequence[Any], most: float) -> None:
        """Scale gradients as torch.nn.utils.clip_grad_norm_ does. The first rank of each stage gives its squares.

        A weight is in one stage only, also if it is shared.
        """
        import torch

        norms = [torch.linalg.vector_norm(each, dtype=torch.float64) for each in grads if self._number == 0]
        squares = sum((each.square() for each in norms), torch.zeros((), dtype=torch.float64)).reshape(1)
        self._peers.add_up([squares])
        factor = (most / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for each in grads:
            each.mul_(factor.to(each.dtype))

    def _tag(self, message: Message, forward: bool) -> int:
        """Of two neighbouring iterations no two messages have the same tag."""
        total = len(self._wiring.messages)
        return (self._iteration % 2 * 2 + forward) * total + message.number

    def _post(self, action: Action) -> _Posted:
        """Begin to receive what a pass needs. Messages fill their samples of one tensor."""
        import torch

        forward = action.kind is Pass.FORWARD
        rank = self._peers.rank
        samples = self._wiring.samples(rank, action.index)
        tensors: dict[tuple[str, int], Any] = {}
        works = []
        for each in self._wiring.incoming(rank, action.kind, action.index):
            value = self._values[each.wire.value]
            key = value.name, each.wire.source if forward else each.wire.target
            if key not in tensors:
                tensors[key] = torch.empty((len(samples), *value.shape), dtype=value.dtype)
            part = tensors[key][each.start - samples.start : each.stop - samples.start]
            peer = each.sender if forward else each.receiver
            works.append((each, self._peers.receive(part, peer, self._tag(each, forward))))
        return _Posted(tensors, works)

    def _received(self, posted: _Posted, action: Action) -> dict[str, Any]:
        """The tensors of a pass by value; gradients from several stages are added up."""
        for message, work in posted.works:
            peer = message.sender if action.kind is Pass.FORWARD else message.receiver
            with self._peers.waiting(f"rank {peer}"):
                work.wait()
        found: dict[str, Any] = {}
        for (name, _), each in posted.tensors.items():
            if name not in found:
                found[name] = each
            elif each.dtype.is_floating_point:
                found[name] += each
        return found

    def _send(self, action: Action, given: Mapping[str, Any]) -> None:
        forward = action.kind is Pass.FORWARD
        start = self._wiring.samples(self._peers.rank, action.index).start
        sends = []
        for each in self._wiring.outgoing(self._peers.rank, action.kind, action.index):
            part = given[each.wire.value][each.start - start : each.stop - start]
            peer = each.receiver if forward else each.sender
            sends.append((each, self._peers.send(part, peer, self._tag(each, forward)), part))
        if sends:
            self._sends[action] = sends

    def _sent(self, action: Action, by_grad: bool = False) -> None:
        """Wait until messages have arrived: all of a pass, or those whose gradients have come back."""
        left = []
        for each in self._sends.pop(action, []):
            message, work, _ = each
            if by_grad and not message.wire.grad:
                left.append(each)
                continue
            peer = message.receiver if action.kind is Pass.FORWARD else message.sender
            with self._peers.waiting(f"rank {peer}"):
                work.wait()
        if left:
            self._sends[action] = left


def train(
    training: Training,
    plan: Plan,
    steps: int,
    limit_s: float,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    seed: int = 0,
    progress: Progress = lambda step, loss, seconds: None,
    clip_norm: float | None = None,
) -> Ended:
    """Train the network of a plan as one of its processes (see ``run``). Raises CollageError."""
    traced = training.trace()
    check_fit(plan, traced.names, [(each.source, each.target) for each in edges(traced)])
    wiring = Wiring(plan, torch_wires(traced, plan))
    training.check_micro_batches(traced, plan, *rank_and_size())
    known = checkpoints.read() if resume and checkpoints is not None and checkpoints.there else None
    peers = Peers(wiring.ranks, limit_s)
    stage = TorchStage(training, traced, plan, wiring.place(peers.rank)[0])
    first = 0
    if known is not None:
        first, state = known
        stage.load(state)
        del known, state
    return run(peers, wiring, stage, traced.values, steps, first, checkpoints, seed, progress, clip_norm)


def sleep(slow: BlockGraph, plan: Plan, steps: int, limit_s: float) -> Ended:
    """Run a plan as one of its processes, with sleeps by the times of a graph. Raises CollageError."""
    check_fit(plan, slow.names, [(each.source, each.target) for each in slow.edges])
    wires, values = sleep_wires(slow, plan), sleep_values(slow)
    wiring = Wiring(plan, wires)
    peers = Peers(wiring.ranks, limit_s)
    stage = SleepStage(slow, plan, wires, values, wiring.place(peers.rank)[0])
    return run(peers, wiring, stage, values, steps)


def run(
    peers: Peers,
    wiring: Wiring,
    work: StageWork,
    values: Mapping[str, Value],
    steps: int,
    first: int = 0,
    checkpoints: Checkpoints | None = None,
    seed: int = 0,
    progress: Progress = lambda step, loss, seconds: None,
    clip_norm: float | None = None,
) -> Ended:
    """Run the iterations from step ``first`` up to step ``steps``.

    With ``clip_norm`` the norm of the gradients of all stages together is clipped to it before each update.
    ``progress`` is called with the step, its loss and its seconds. Random numbers follow from the seed, the step and
    the rank. Raises CollageError.
    """
    import torch

    stage, number = wiring.place(peers.rank)
    engine = Engine(peers, wiring, work, values, clip_norm)
    peers.add_up([torch.zeros(1)])
    losses, seconds = [], []
    for step in range(first, steps):
        torch.manual_seed(hash((seed, step, peers.rank)) & (1 << 62) - 1)
        work.begin(step)
        start = time.perf_counter()
        losses.append(engine.iteration())
        seconds.append(time.perf_counter() - start)
        progress(step, losses[-1], seconds[-1])
        if checkpoints is not None and isinstance(work, TorchStage) and checkpoints.due(step + 1, steps):
            if number == 0:
                checkpoints.write(step + 1, stage, work.state())
            peers.add_up([torch.zeros(1)])
            if peers.rank == 0:
                checkpoints.finish(step + 1, len(wiring.plan.stages))
    return Ended(first, tuple(losses), tuple(seconds))
