"""The commands ``collage graphpipe profile``, ``cluster`` and ``run``."""

from __future__ import annotations

import ctypes
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collage.cli.console import print_json, print_table, say
from collage.cli.files import check_writable, make_folder
from collage.cli.options import JSON_OPTION, PATH, SEED_OPTION, Count, Number, Seconds, flag, option
from collage.cli.signals import Terminated
from collage.core.child_process import import_path, signal_name
from collage.core.memory import physical_bytes
from collage.core.new_file import new_file
from collage.errors import CollageError, UsageError

if TYPE_CHECKING:
    from collage.graphpipe.graph import BlockGraph
    from collage.graphpipe.plan import Plan
    from collage.graphpipe.runtime import Ended

_MODEL = "MODEL.py:function"
_LAUNCHER = "COLLAGE_GRAPHPIPE_LAUNCHER"
"""The variable with the id of the process that has started a rank."""
_MALLOC = {-3: 32 << 20, -1: (1 << 31) - 1, -2: 64 << 20}
"""glibc's M_MMAP_THRESHOLD (the most that it takes), M_TRIM_THRESHOLD and M_TOP_PAD, in bytes."""
_FAR = 0.3
"""The relative error of a simulation that is remarked on."""
_GRACE_S = 5.0
"""The seconds that processes have to end by themselves once another one has failed."""
_THREADS = option("--threads", default=1, type=Count(min=1), metavar="N", help="Threads of torch in a process.")
_LIMIT = option(
    "--limit",
    "limit_s",
    default=60.0,
    type=Seconds(finite=True),
    metavar="S",
    help="Seconds that a process waits for another one; it has to be longer than an iteration.",
)


@click.command()
@click.argument("model", metavar=_MODEL)
@option("-o", "--output", required=True, metavar="GRAPH.json", type=PATH, help="The file to write.")
@option("--most", default=64, type=Count(min=1), metavar="N", help="Samples of the largest micro-batch, a power of 2.")
@option("--runs", default=5, type=Count(min=1), metavar="N", help="Measured runs of each block; the median counts.")
@_THREADS
@SEED_OPTION
def profile(model: str, output: Path, most: int, runs: int, threads: int, seed: int) -> None:
    """Measure a PyTorch network, and write the graph to plan.

    The function returns (module, batch) or (module, batch, optimizer). The module takes the tensors of a batch, with
    the samples on the first axis, and gives its mean loss over the samples. batch(step, samples) gives these tensors as
    a tuple, the same ones in each process. optimizer(parameters) makes a torch optimizer; SGD without it.

    \b
    Example:
      collage graphpipe profile model.py:build -o graph.json
    """
    if most & (most - 1):
        raise UsageError("--most is a power of 2.")
    check_writable(output, (".json", ".toml"))
    _torch(threads)
    from collage.graphpipe.graph import write_json
    from collage.graphpipe.profile import profiled
    from collage.graphpipe.training import load_training

    training = load_training(model, seed)
    graph = profiled(training, training.trace(), Path(model.rpartition(":")[0]).stem, most, runs, _progress)
    write_json(output, graph.to_json())
    rows = [
        (str(at), each.name, *(f"{s * 1e3:.3g}" for s in (each.forward_s[-1], each.backward_s[-1], each.update_s)),
         f"{each.weight_bytes / 1e6:.3g}", f"{each.activation_bytes / 1e3:.3g}")
        for at, each in enumerate(graph.blocks)
    ]  # fmt: skip
    titles = ("", "block", "forward, ms", "backward, ms", "update, ms", "weights, MB", "kept, kB a sample")
    print_table(titles, rows, right=titles[2:])
    say(f"Passes are of {most} samples. wrote {output}")


@click.command()
@option("--devices", default=2, type=Count(min=1), metavar="N", help="Processes to plan for.")
@option("-o", "--output", required=True, metavar="FILE.toml", type=PATH, help="The file to write.")
@_LIMIT
def cluster(devices: int, output: Path, limit_s: float) -> None:
    """Describe this machine as a cluster, with the link between two processes measured.

    Each process has an equal part of the memory.

    \b
    Example:
      collage graphpipe cluster --devices 2 -o cluster.toml
    """
    check_writable(output, (".json", ".toml"))
    if not _is_rank():
        _launch(2, limit_s)
        return
    with _as_rank():
        _torch(1)
        from collage.graphpipe.links import measured_link

        link = measured_link(limit_s)
        if os.environ["RANK"] == "0":
            text = (
                f"devices = {devices}\nmemory_gb = {physical_bytes() / devices / 1e9:.3f}\n"
                f"[inner]\nlatency_us = {link.latency_s * 1e6:.1f}\nbandwidth_gb_s = {link.bandwidth / 1e9:.3f}\n"
            )
            with new_file(output) as stream:
                stream.write(text.encode())
            say(f"{text}wrote {output}")


@click.command()
@click.argument("plan_file", metavar="PLAN.json", type=PATH)
@click.argument("model", metavar=f"[{_MODEL}]", required=False)
@option("--steps", default=10, type=Count(min=1), metavar="N", help="Run up to this step.")
@option("--checkpoint", "folder", metavar="DIR", type=PATH, help="Write checkpoints to this folder.")
@option("--every", default=100, type=Count(min=1), metavar="N", help="Steps from one checkpoint to the next.")
@flag("--resume", help="Go on from the last checkpoint in --checkpoint, if there is one, by this or another plan.")
@option(
    "--clip-norm",
    type=Number(min=0, min_open=True),
    metavar="X",
    help="Clip the norm of all gradients together, as clip_grad_norm_ does in one process.",
)
@flag("--sleep", "asleep", help="Sleep for the profiled time of each pass, with messages of true size; needs --graph.")
@flag("--torch", "on_torch", help="Run a chain on torch.distributed.pipelining (1F1B) instead, to compare with.")
@option("--graph", "graph_file", metavar="GRAPH.json", type=PATH, help="The profile, to predict an iteration.")
@option("--cluster", "cluster_file", metavar="FILE.toml", type=PATH, help="The cluster, to predict an iteration.")
@_LIMIT
@_THREADS
@SEED_OPTION
@JSON_OPTION
def run(
    plan_file: Path,
    model: str | None,
    steps: int,
    folder: Path | None,
    every: int,
    resume: bool,
    clip_norm: float | None,
    asleep: bool,
    on_torch: bool,
    graph_file: Path | None,
    cluster_file: Path | None,
    limit_s: float,
    threads: int,
    seed: int,
    as_json: bool,
) -> None:
    """Train a network by a plan, with one process a device.

    The processes are started on this machine; under torchrun this process is one of them. With --graph and --cluster
    the seconds of an iteration are compared with the simulation. If a process ends, the others do so within --limit.

    \b
    Examples:
      collage graphpipe run plan.json model.py:build --steps 100 --checkpoint kept
      collage graphpipe run plan.json model.py:build --steps 200 --checkpoint kept --resume
      collage graphpipe run plan.json --sleep --graph graph.json --cluster cluster.toml
      torchrun --nproc-per-node 2 --no-python collage graphpipe run plan.json model.py:build
    """
    if asleep == (model is not None):
        raise UsageError(f"give {_MODEL} or --sleep{', not both' if asleep else ''}.")
    if asleep and (graph_file is None or folder is not None):
        raise UsageError("--sleep needs --graph, and has no --checkpoint.")
    if resume and folder is None:
        raise UsageError("--resume needs --checkpoint.")
    if cluster_file is not None and graph_file is None:
        raise UsageError("--cluster needs --graph: an iteration is predicted from both.")
    if clip_norm is not None and (asleep or on_torch or not clip_norm > 0):
        raise UsageError("--clip-norm is above 0, and has no --sleep and no --torch.")
    if on_torch and (asleep or folder is not None):
        raise UsageError("--torch has no --sleep and no --checkpoint.")
    from collage.graphpipe.checkpoint import Checkpoints
    from collage.graphpipe.graph import BlockGraph, read_json
    from collage.graphpipe.plan import Plan

    plan = read_json(plan_file, Plan.from_json)
    graph = None if graph_file is None else read_json(graph_file, BlockGraph.from_json)
    factor = 1.0
    if graph is not None:
        from collage.graphpipe.stages import slowed
        from collage.graphpipe.wiring import check_fit

        check_fit(plan, graph.names, [(each.source, each.target) for each in graph.edges])
        slow, slower = slowed(graph, plan)
        graph, factor = (slow, slower) if asleep else (graph, 1.0)
    predicted_s = _predicted(plan, graph, cluster_file)
    if folder is not None:
        make_folder(folder)
        if not resume and Checkpoints(folder, every).there:
            raise UsageError(f"{folder} has a checkpoint: --resume goes on from it, or name another folder.")
    if not _is_rank():
        _launch(sum(len(each.devices) for each in plan.stages), limit_s)
        return
    with _as_rank():
        _torch(threads)
        from collage.graphpipe import runtime
        from collage.graphpipe.training import load_training

        if asleep and graph is not None:
            found = runtime.sleep(graph, plan, steps, limit_s)
        else:
            show = _steps(steps, as_json) if os.environ["RANK"] == "0" else lambda step, loss, seconds: None
            training = load_training(str(model), seed)
            if on_torch:
                from collage.graphpipe.linear import train_chain

                found = train_chain(training, plan, steps, limit_s, show)
            else:
                checkpoints = None if folder is None else Checkpoints(folder, every)
                found = runtime.train(training, plan, steps, limit_s, checkpoints, resume, seed, show, clip_norm)
        if os.environ["RANK"] == "0":
            _report(found, plan, predicted_s, factor, asleep, as_json)


def _predicted(plan: Plan, graph: BlockGraph | None, cluster_file: Path | None) -> float | None:
    """The simulated seconds of an iteration, if graph and cluster are there."""
    if graph is None or cluster_file is None:
        return None
    from collage.graphpipe.cluster import Cluster
    from collage.graphpipe.costs import Costs
    from collage.graphpipe.simulate import simulated

    return simulated(plan, Costs(graph, Cluster.read(cluster_file), plan.mini_batch)).iteration_s


def _report(found: Ended, plan: Plan, predicted_s: float | None, factor: float, asleep: bool, as_json: bool) -> None:
    if not found.seconds:
        say(f"All {found.first_step} steps were done before.")
        return
    seconds = found.iteration_s
    if as_json:
        result: dict[str, Any] = {
            "first_step": found.first_step,
            "losses": list(found.losses),
            "seconds": list(found.seconds),
            "iteration_s": seconds,
            "samples_per_s": plan.mini_batch / seconds,
            "predicted_s": predicted_s,
            "sleep_factor": factor if asleep else None,
        }
        print_json(result)
        return
    if wrong := sum(not math.isfinite(each) for each in found.losses):
        say(f"{wrong} of {len(found.losses)} losses are not finite.")
    mode = f" in sleep mode (times x {factor:.4g})" if asleep else ""
    say(f"An iteration took {seconds * 1e3:.4g} ms{mode}, {plan.mini_batch / seconds:.4g} samples/s.")
    if predicted_s is not None:
        error = predicted_s / seconds - 1
        say(f"The simulation says {predicted_s * 1e3:.4g} ms, {error * 100:+.1f} %.")
        if abs(error) > _FAR:
            say("Processes on one machine share its cores and memory; so profile on a calm machine, and compare again.")


def _steps(steps: int, quiet: bool) -> Callable[[int, float, float], None]:
    """Shows about twenty steps, unless it is ``quiet``, and warns of the first loss that is not finite."""
    wrong = False

    def show(step: int, loss: float, seconds: float) -> None:
        nonlocal wrong
        if not wrong and not math.isfinite(loss):
            wrong = True
            say(f"collage: warning: the loss of step {step + 1} is {loss:g}; the run goes on.", err=True)
        if quiet:
            return
        if (step + 1) % max(1, steps // 20) == 0 or step + 1 == steps:
            say(f"step {step + 1}: loss {loss:.6g}, {seconds * 1e3:.4g} ms")

    return show


def _progress(text: str) -> None:
    say(text, err=True)


def _torch(threads: int) -> None:
    """Load torch, which writes nothing to stderr then. Raises CollageError without it.

    Freed memory is kept: gradients of some megabytes would go back to the system, and come again page by page, in each
    pass.
    """
    for option_of, value in _MALLOC.items():
        ctypes.CDLL(None).mallopt(option_of, value)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        import torch
    except ImportError as error:
        raise CollageError("this needs torch: pip install 'collage-compiler[train]'.") from error
    torch.set_num_threads(threads)


def _is_rank() -> bool:
    """Whether this process is one of several, started by torchrun or by us."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def _as_rank() -> Iterator[None]:
    """End the process after the block, with one line if it fails. Gloo's threads may never end by themselves."""
    status = 0
    if (launcher := os.environ.get(_LAUNCHER)) is not None:
        threading.Thread(target=_end_with, args=(int(launcher),), daemon=True).start()
    try:
        yield
    except (KeyboardInterrupt, Terminated) as end:
        status = getattr(end, "exit_code", 130)
    except CollageError as error:
        say(f"collage: error: {error}", err=True)
        status = error.exit_code
    except Exception as error:
        from collage.core.library_text import raised

        say(f"collage: error: rank {os.environ['RANK']} fails: {raised(error)}.", err=True)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _end_with(launcher: int) -> None:
    """End this process when the one that has started it is gone."""
    while os.getppid() == launcher:
        time.sleep(0.5)
    os._exit(1)


def _launch(size: int, limit_s: float) -> None:
    """Run this command line once for each rank, and wait for all. Raises CollageError if one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = sys.argv[1:]
    code = f"import sys; sys.path[:] = {import_path()!r}; from collage.cli.main import main; main({words!r})"
    started: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    said: set[bytes] = set()
    try:
        for rank in range(size):
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port, _LAUNCHER: os.getpid()}
            env = os.environ | {name: str(each) for name, each in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
            out = None if rank == 0 else subprocess.DEVNULL
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C goes to this process only
            )
            started.append(process)
            readers.append(threading.Thread(target=_hand_on, args=(process.stderr, said), daemon=True))
            readers[-1].start()
        _watch(started, limit_s)
    finally:
        for each in started:
            if each.poll() is None:
                each.kill()
            each.wait()
        for reader in readers:
            reader.join(1.0)


def _hand_on(stream: Any, said: set[bytes]) -> None:
    """Hand on what a rank writes to stderr, but for errors and warnings that another one has written already."""
    for line in stream:
        if not line.startswith(b"collage: ") or line not in said:
            said.add(line)
            sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()


def _watch(started: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Wait for processes; once one has failed, for the others a little longer. Raises CollageError."""
    end = float("inf")
    while time.monotonic() < end and any(each.poll() is None for each in started):
        if end == float("inf") and any(each.returncode for each in started):
            end = time.monotonic() + min(limit_s + 3.0, _GRACE_S)
        time.sleep(0.02)
    for rank, each in enumerate(started):
        if each.returncode is not None and each.returncode < 0:
            raise CollageError(f"rank {rank} was ended by {signal_name(-each.returncode)}, and the run with it.")
    failed = [str(rank) for rank, each in enumerate(started) if each.returncode != 0]
    if failed:
        raise CollageError(f"the run has ended, since rank {', '.join(failed)} failed.")
