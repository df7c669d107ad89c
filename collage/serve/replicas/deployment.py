"""The deployment: replicas of a server behind the proxies of Ray Serve."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from collage.errors import ClusterError, UsageError
from collage.serve.http.front import Front, check_libraries
from collage.serve.http.options import ServerOptions
from collage.serve.model import blocks_of_one, threads_of
from collage.serve.plan import MOST_STREAMS
from collage.serve.tokenizer import refuse_without_tokenizer

if TYPE_CHECKING:
    from starlette.applications import Starlette

_CHECK_PERIOD_S = 2.0
_CHECK_LIMIT_S = 10.0
_ATTEMPTS = 2
"""How often Ray makes a replica that cannot load the model, before it gives up."""


def import_serve() -> ModuleType:
    """Import Ray Serve. Raises ClusterError if it or Ray is not installed."""
    try:
        from ray import serve
    except ImportError as error:
        raise ClusterError(
            "replicas need Ray Serve, which is not installed: pip install 'collage-compiler[replicas]'."
        ) from error
    found: ModuleType = serve
    return found


class Replica:
    """A server in an actor of Ray: requests come over Ray's proxies, and the engine has a process of its own."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, options: ServerOptions, cpus: int, replicas: int
    ) -> None:
        """Start the engine. ``cpus`` is the number of processors that it uses. Raises CollageError.

        ``replicas`` is the number of all replicas. Those that do not serve yet start at the same time, so each takes a
        share of the memory that is free. One that replaces another has what the others have left.
        """
        serve = import_serve()
        place = serve.get_replica_context().rank.local_rank
        usable = sorted(os.sched_getaffinity(0))
        blocks = blocks_of_one(
            options.model,
            options.block_count,
            options.cache,
            options.parallelism,
            most_beside(len(usable), cpus, replicas - running_beside(serve)),
        )
        cpus_here = own_cpus(usable, cpus, place)
        self._front = Front(replace(options, block_count=blocks), cpus_here, share_weights=True)
        try:
            await self._front.start()
        except BaseException:
            await self._front.stop()
            raise

    def __serve_build_asgi_app__(self) -> Starlette:
        return self._front.app

    async def check_health(self) -> None:
        """Raise ClusterError if the engine cannot be started again, so that Ray makes another replica."""
        if problem := self._front.service.link.problem:
            raise ClusterError(problem)

    async def __del__(self) -> None:
        """End the engine. Ray calls it when the replica has no requests left."""
        if hasattr(self, "_front"):
            await self._front.stop()


def running_beside(serve: ModuleType) -> int:
    """How many replicas serve already, in the process of one of them, which has all of its memory by then."""
    context = serve.get_replica_context()
    states = serve.status().applications[context.app_name].deployments[context.deployment].replica_states
    return int(states.get("RUNNING", 0))


def own_cpus(usable: Sequence[int], count: int, place: int) -> tuple[int, ...]:
    """The processors of the replica that has this place on its node.

    Teams of threads pin theirs, so replicas beside each other must not choose the same ones. It is empty, for all that
    are usable, if there is one thread, which is not pinned, and where there are not enough.
    """
    last = (place + 1) * count
    return tuple(usable[last - count : last]) if count > 1 and last <= len(usable) else ()


def most_beside(usable: int, cpus: int, replicas: int) -> int:
    """How many of the replicas, which use ``cpus`` processors each, may be on a node with so many usable ones."""
    return max(1, min(replicas, usable // cpus))


def most_open(options: ServerOptions) -> int:
    """The most requests that a replica takes at a time; its engine has ``max_running`` in each iteration in flight.

    Where its engine chooses that number, it is the most that it may choose: the engine refuses what is more.
    """
    workers = 1 if options.parallelism is None else options.parallelism.workers
    return (options.engine.max_running or MOST_STREAMS) * workers + options.engine.max_waiting


def cpus_of(options: ServerOptions) -> int:
    """The processors that a replica uses: the threads that the decoder was compiled for, in each of its processes."""
    threads = threads_of(options.model)
    return threads * (options.parallelism.processes if options.parallelism is not None else 1)


def application(options: ServerOptions, replicas: int) -> Any:
    """An application for ``ray.serve.run``, with so many replicas. Host and port are those of Ray's proxies.

    Each replica reserves as many processors of the cluster as it uses, and reads the model from the same path.
    Raises CollageError if the model or the options are of no use.
    """
    check_libraries()
    if replicas < 1:
        raise UsageError(f"there must be one replica or more, not {replicas}.")
    if options.tokenizer is not None:
        refuse_without_tokenizer(options.tokenizer)
    serve = import_serve()
    cpus = cpus_of(options)
    most = most_open(options)
    made = serve.deployment(
        serve.ingress()(Replica),
        name="Replica",
        num_replicas=replicas,
        ray_actor_options={"num_cpus": cpus},
        # A replica itself refuses what is too much for it, and knows best when to come back.
        max_ongoing_requests=most + 1,
        max_queued_requests=most,
        backpressure_config={"status_code": 429, "retry_after_s": 1.0},
        graceful_shutdown_timeout_s=options.drain_s,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=_CHECK_PERIOD_S,
        health_check_timeout_s=_CHECK_LIMIT_S,
        max_constructor_retry_count=_ATTEMPTS,
        logging_config={"enable_access_log": False},
    )
    return made.bind(_absolute(options), cpus, replicas)


def _absolute(options: ServerOptions) -> ServerOptions:
    """The options for a replica, whose paths mean the same in Ray's folders."""

    def whole(path: Path | None) -> Path | None:
        return None if path is None else path.resolve()

    return replace(
        options,
        model=options.model.resolve(),
        name=options.shown_name,
        tokenizer=whole(options.tokenizer),
    )


def check_room(nodes: Sequence[dict[str, Any]], replicas: int, cpus: int) -> None:
    """Raise ClusterError if the nodes of a cluster, as Ray describes them, have no room for the replicas."""
    sizes = [math.floor(each["Resources"].get("CPU", 0)) for each in nodes if each["Alive"]]
    fit = sum(size // cpus for size in sizes)
    if fit < replicas:
        raise ClusterError(
            f"the cluster has room for {fit} replicas that use {cpus} CPUs each, not for {replicas}: its nodes have "
            f"{', '.join(str(each) for each in sizes)} CPUs. Ask for fewer replicas, or compile the decoder with fewer "
            "--threads."
        )
