"""The command ``collage serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from collage.cli.console import say
from collage.cli.options import PATH, Count, Number, Seconds, option, refuse_unused


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
@click.argument("model", metavar="MODEL", type=PATH)
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
    help="Most sequences that wait; more get 429.",
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
    **options: Any,
) -> None:
    """Serve a compiled decoder to many clients at a time, by OpenAI's API.

    MODEL is a compiled decoder, or a folder that has one beside its tokenizer.json. Without a tokenizer, prompts are
    token ids. Requests share iterations: they join and leave at any token. Ctrl-C or SIGTERM finishes open requests
    first. Anybody who reaches the port may use it: put a proxy that asks for keys before it. A module file is a
    program, which runs with your rights: serve only files from people whose programs you would run.

    \b
    Examples:
      collage serve model.collage --port 8000
      collage serve folder --itl-target 100 --cache-blocks 2000
      collage serve model.collage --policy orca
      collage serve model.collage --parallel cache --processes 2
      collage serve model.collage --replicas 4 --cluster auto --host 0.0.0.0

    \b
    A client:
      curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\
        -d '{"model": "model", "prompt": [1, 2, 3], "max_tokens": 8, "stream": true}'
    """
    from collage.serve.http.options import ServerOptions
    from collage.serve.http.server import run_server
    from collage.serve.options import EngineOptions
    from collage.serve.parallel.options import Parallelism

    if parallel is None:
        refuse_unused("--processes", "--parallel")
    if replicas is None:
        refuse_unused("--cluster", "--replicas")
    engine = EngineOptions(policy, max_running, max_waiting, itl_target)
    parallelism = None if parallel is None else Parallelism(parallel, processes)
    server = ServerOptions(model, engine, parallelism=parallelism, **options)
    if replicas is None:
        run_server(server, lambda text: say(text, err=True))
        return
    from collage.cluster.address import ClusterAddress
    from collage.serve.replicas.command import run_replicas

    run_replicas(server, replicas, ClusterAddress(cluster), lambda text: say(text, err=True))
