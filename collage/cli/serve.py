"""The command ``collage serve``."""

from __future__ import annotations

from pathlib import Path

import click

from collage.cli.console import say
from collage.cli.options import Count, Number, Seconds, refuse_unused


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
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=Count(0, 65535),
    metavar="N",
    default=8000,
    show_default=True,
    help="Port; 0 takes any free one.",
)
@click.option(
    "--allow-origin",
    "allow_origins",
    type=parse_origin,
    multiple=True,
    metavar="ORIGIN",
    help="Let pages from there use the server in a browser (CORS), such as http://localhost:3000; * for all pages. "
    "Repeatable. Default: none.",
)
@click.option("--name", metavar="NAME", help="What clients call the model. Default: the file's name.")
@click.option(
    "--tokenizer",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with tokenizer.json, and the chat template if there is one. Default: the model's.",
)
@click.option(
    "--policy",
    type=click.Choice(["chunked", "orca"]),
    default="chunked",
    show_default=True,
    help="chunked: streams first, prompts in chunks. orca: Algorithm 1 of the paper.",
)
@click.option(
    "--max-running",
    type=Count(min=1),
    metavar="N",
    help="Most sequences in an iteration. Default: 32, or up to 64 if measured times show that this is faster.",
)
@click.option(
    "--max-waiting",
    type=Count(min=1),
    default=256,
    show_default=True,
    metavar="N",
    help="Most sequences that wait; more get 429.",
)
@click.option(
    "--itl-target",
    type=Number(min=0, min_open=True),
    metavar="MS",
    help="Longest time between two tokens of a stream while prompts are computed. "
    "Default: twice the time without prompts, unless many requests wait.",
)
@click.option(
    "--cache-blocks",
    type=Count(min=1),
    metavar="N",
    help="Blocks of the cache of keys and values. Default: as many as make sense in the free memory.",
)
@click.option(
    "--cache",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="Type of the cache's elements. bfloat16 takes half the memory, int8 little more than a quarter; both "
    "round keys and values.",
)
@click.option(
    "--drain-seconds",
    type=Seconds(finite=True, zero=True),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Time that open requests get after SIGTERM.",
)
@click.option(
    "--parallel",
    type=click.Choice(["cache", "tensor", "pipeline"]),
    help="Use several processes. cache: each holds a share of every sequence's cache. tensor: each has some heads and "
    "columns of each layer. pipeline: each has some layers.",
)
@click.option(
    "--processes",
    type=Count(min=2),
    default=2,
    show_default=True,
    metavar="N",
    help="Processes of --parallel.",
)
@click.option(
    "--replicas",
    type=Count(min=1),
    metavar="N",
    help="Serve with so many copies behind one address, by Ray Serve.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    default="local",
    show_default=True,
    help="The Ray cluster of --replicas: auto, HOST:PORT, or local for this machine alone.",
)
def serve(
    model: Path,
    host: str,
    port: int,
    allow_origins: tuple[str, ...],
    name: str | None,
    tokenizer: Path | None,
    policy: str,
    max_running: int | None,
    max_waiting: int,
    itl_target: float | None,
    cache_blocks: int | None,
    cache: str,
    drain_seconds: float,
    parallel: str | None,
    processes: int,
    replicas: int | None,
    cluster: str,
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
    engine = EngineOptions(
        policy=policy,
        max_running=max_running,
        max_waiting=max_waiting,
        itl_target_ms=itl_target,
    )
    options = ServerOptions(
        model,
        engine,
        host,
        port,
        name,
        tokenizer,
        cache_blocks,
        cache,
        drain_seconds,
        None if parallel is None else Parallelism(parallel, processes),
        allow_origins,
    )
    if replicas is None:
        run_server(options, lambda text: say(text, err=True))
        return
    from collage.cluster.address import ClusterAddress
    from collage.serve.replicas.command import run_replicas

    run_replicas(options, replicas, ClusterAddress(cluster), lambda text: say(text, err=True))
