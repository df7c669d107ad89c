"""The command ``collage serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from collage.cli.completion import MODULES, complete_files
from collage.cli.console import say
from collage.cli.errors import log_lines
from collage.cli.options import PATH, Count, Number, Seconds, flag, given, option, refuse_unused
from collage.errors import UsageError

_OF_DECODERS = (
    *("--tokenizer", "--policy", "--max-running", "--itl-target", "--cache-blocks", "--cache", "--parallel"),
    *("--processes", "--replicas", "--cluster"),
)
_OF_MODULES = ("--max-batch", "--max-wait-ms", "--max-body-mib")


def parse_origin(text: str) -> str:
    """Parse ``http://localhost:3000``, as browsers name the origin of a page, ``null``, or ``*`` for all origins."""
    if text in ("*", "null"):
        return text
    found = text.lower().removesuffix("/")
    scheme, _, host = found.partition("://")
    if not scheme or not host or set(host) & set("/?#@* "):
        raise click.BadParameter(f"{text!r} is no origin; write it as http://localhost:3000, or * for all.")
    return found


@click.command()
@click.argument("model", metavar="MODEL", type=PATH, shell_complete=complete_files(MODULES))
@option("--host", default="127.0.0.1", help="Address to listen on.")
@option("--port", type=Count(0, 65535), metavar="N", default=8000, help="Port; 0 takes any free one.")
@option(
    "--allow-origin",
    "allow_origins",
    type=parse_origin,
    multiple=True,
    metavar="ORIGIN",
    help="Let pages from there use the server in a browser (CORS), such as http://localhost:3000; * for all pages. "
    "Repeatable. Default: none.",
)
@flag("--access-log", help="Write a line for each request: client, path, status, time, and id.")
@option("--name", metavar="NAME", help="What clients call the model. Default: the file's name.")
@option(
    "--tokenizer",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with tokenizer.json, and the chat template if there is one. Default: the model's.",
)
@option(
    "--policy",
    type=click.Choice(["chunked", "orca"]),
    default="chunked",
    help="chunked: streams first, prompts in chunks. orca: Algorithm 1 of the paper.",
)
@option(
    "--max-running",
    type=Count(min=1),
    metavar="N",
    help="Most sequences in an iteration. Default: 32, or up to 64 if measured times show that this is faster.",
)
@option(
    "--max-waiting",
    type=Count(min=1),
    default=256,
    metavar="N",
    help="Most sequences of a decoder that wait, or open requests of a module; more get 429.",
)
@option(
    "--max-batch",
    type=Count(min=1),
    metavar="N",
    help="Of a module: join requests along their first axis to calls of at most N rows. Default: each runs alone.",
)
@option(
    "--max-wait-ms",
    type=Number(min=0),
    default=2.0,
    metavar="MS",
    help="Longest time that a request of a module waits for others to join it (--max-batch).",
)
@option(
    "--max-body-mib",
    type=Count(min=1),
    default=64,
    metavar="N",
    help="Of a module: largest body of a request, in MiB; a larger one gets 413.",
)
@option(
    "--itl-target",
    type=Number(min=0, min_open=True),
    metavar="MS",
    help="Longest time between two tokens of a stream while prompts are computed. "
    "Default: twice the time without prompts, unless many requests wait.",
)
@option(
    "--cache-blocks",
    "block_count",
    type=Count(min=1),
    metavar="N",
    help="Blocks of the cache of keys and values. Default: as many as make sense in the free memory.",
)
@option(
    "--cache",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    help="Type of the cache's elements. bfloat16 takes half the memory, int8 little more than a quarter; both "
    "round keys and values.",
)
@option(
    "--drain-seconds",
    "drain_s",
    type=Seconds(finite=True, zero=True),
    default=30.0,
    metavar="S",
    help="Time that open requests get after SIGTERM.",
)
@option(
    "--parallel",
    type=click.Choice(["cache", "tensor", "pipeline"]),
    help="Use several processes. cache: each holds a share of every sequence's cache. tensor: each has some heads and "
    "columns of each layer. pipeline: each has some layers.",
)
@option("--processes", type=Count(min=2), default=2, metavar="N", help="Processes of --parallel.")
@option(
    "--replicas",
    type=Count(min=1),
    metavar="N",
    help="Serve with so many copies behind one address, by Ray Serve.",
)
@option(
    "--cluster",
    metavar="ADDRESS",
    default="local",
    help="The Ray cluster of --replicas: auto, HOST:PORT, or local for this machine alone.",
)
def serve(
    model: Path,
    policy: str,
    max_running: int | None,
    max_waiting: int,
    itl_target: float | None,
    parallel: str | None,
    processes: int,
    replicas: int | None,
    cluster: str,
    max_batch: int | None,
    max_wait_ms: float,
    max_body_mib: int,
    access_log: bool,
    **options: Any,
) -> None:
    """Serve a compiled decoder by OpenAI's API, or a module by KServe's protocol V2, to many clients at a time.

    MODEL is a compiled decoder, or a folder that has one beside its tokenizer.json. Without a tokenizer, prompts are
    token ids. Requests share iterations: they join and leave at any token. Or it is a module, as `collage compile`
    writes it, which clients of Triton and KServe can use. Ctrl-C or SIGTERM finishes open requests
    first. Anybody who reaches the port may use it: put a proxy that asks for keys before it. A module file is a
    program, which runs with your rights: serve only files from people whose programs you would run.

    \b
    Examples:
      collage serve model.collage --port 8000
      collage serve folder --itl-target 100 --cache-blocks 2000
      collage serve model.collage --policy orca
      collage serve model.collage --parallel cache --processes 2
      collage serve model.collage --replicas 4 --cluster auto --host 0.0.0.0
      collage serve module.collage --max-batch 32 --max-wait-ms 5

    \b
    Clients of a decoder and of a module:
      curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\
        -d '{"model": "model", "prompt": [1, 2, 3], "max_tokens": 8, "stream": true}'
      curl localhost:8000/v2/models/module/infer \\
        -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1]}]}'
    """
    from collage.serve.http.options import ServerOptions
    from collage.serve.http.server import run_server
    from collage.serve.options import EngineOptions
    from collage.serve.parallel.options import Parallelism

    if access_log:
        click.get_current_context().with_resource(log_lines("collage.serve.http.asgi"))
    if (module := _module_file(model)) is not None:
        _refuse(_OF_DECODERS, f"a decoder, and {module} is a module")
        if max_batch is None:
            refuse_unused("--max-wait-ms", "--max-batch")
        _serve_module(module, max_batch, max_wait_ms, max_waiting, max_body_mib, options)
        return
    _refuse(_OF_MODULES, f"a module, and {model} is none")
    if parallel is None:
        refuse_unused("--processes", "--parallel")
    if replicas is None:
        refuse_unused("--cluster", "--replicas")
    else:
        _refuse(("--access-log",), "one process, and the proxies of Ray Serve have logs of their own")
    engine = EngineOptions(policy, max_running, max_waiting, itl_target)
    parallelism = None if parallel is None else Parallelism(parallel, processes)
    server = ServerOptions(model, engine, parallelism=parallelism, **options)
    if replicas is None:
        run_server(server, lambda text: say(text, err=True))
        return
    from collage.cluster.address import ClusterAddress
    from collage.serve.replicas.command import run_replicas

    run_replicas(server, replicas, ClusterAddress(cluster), lambda text: say(text, err=True))


def _module_file(model: Path) -> Path | None:
    """The module that a path or folder is; None if it is a decoder, or for who opens decoders to say what is wrong."""
    from collage.module.file import open_archive

    found = [model] if model.is_file() else sorted(model.glob("*.collage"))
    if len(found) != 1 or found[0].suffix == ".onnx":
        return None
    return None if "decoder" in open_archive(found[0]).manifest else found[0]


def _refuse(names: tuple[str, ...], what: str) -> None:
    """Raise UsageError for options that were given and are for something else."""
    if wrong := [name for name in names if given(name)]:
        raise UsageError(f"{', '.join(wrong)}: for {what}.")


def _serve_module(
    module: Path,
    max_batch: int | None,
    max_wait_ms: float,
    max_waiting: int,
    max_body_mib: int,
    options: dict[str, Any],
) -> None:
    from collage.serve.kserve.options import ModuleServerOptions
    from collage.serve.kserve.server import run_module_server

    shared = {name: options[name] for name in ("host", "port", "name", "drain_s", "allow_origins")}
    server = ModuleServerOptions(
        module,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        max_waiting=max_waiting,
        max_body=max_body_mib << 20,
        **shared,
    )
    run_module_server(server, lambda text: say(text, err=True))
