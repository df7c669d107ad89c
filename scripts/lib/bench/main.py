"""``scripts/bench``: the group of subcommands, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

from collage.cli.errors import TRACEBACK_OPTION, CollageGroup

COMMANDS: Mapping[str, str] = {
    "cpu": "Compare Collage with PyTorch, ONNX Runtime and OpenVINO on whole models.",
    "precision": "Compare modules within a tolerance with float32 and with engines in their own precisions.",
    "serve": "Compare Collage's serving engine with request-level scheduling and with OpenVINO GenAI.",
    "parallel": "Compare data, tensor, pipeline and Cache Parallelism at decoding with many cached tokens.",
    "gpu": "Check all parts on an NVIDIA GPU, and measure networks there against PyTorch.",
    "trees": "Compare Collage with the fastest of its peers on ensembles of trees.",
    "windtunnel": "Compare pipelines with the networks that WindTunnel makes of them, fine-tuned.",
    "graphpipe": "Compare GraphPipe's planner with enumeration, and with PipeDream's and Piper's.",
    "explain": "Force other choices, and compare what they cost with what `collage show --explain` says.",
    "tables": "Write docs/benchmarks.md and the README's table of figures from docs/figures.",
    "versions": "Compile seven models, and read the files of an old version.",
}
"""Each subcommand and the first line of its help, so that the list of all needs none of their imports."""


class LazyGroup(CollageGroup):
    """A group whose subcommands are modules beside this one. Errors are one line, as those of ``collage`` are."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the subcommands, whole models first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the subcommand ``name``."""
        if name not in COMMANDS:
            return None
        found: click.Command = import_module(f"scripts.lib.bench.{name.replace('-', '_')}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group("bench", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@TRACEBACK_OPTION
def main() -> None:
    """Measure Collage on whole models, on GPUs, and as a server.

    \b
    scripts/bench cpu                       the paper's five workloads against all engines
    scripts/bench cpu model.onnx --json     a model of yours
    scripts/bench COMMAND --help            what a command measures, with examples

    Results go to stdout and progress to stderr. Exit status: 0, 1 (the work failed), 2 (usage) or 130 (interrupted).
    """
