"""``scripts/bench``: the group of subcommands, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

from collage.cli.errors import TRACEBACK_OPTION, CollageGroup

COMMANDS: Mapping[str, str] = {
    "cpu": "Compare Collage with PyTorch, ONNX Runtime and OpenVINO on whole models.",
    "anytime": "Compare what a compile has after some seconds with what it has at its end.",
    "levels": "Compare the op level with the graph level, and both with the engines.",
    "streams": "Time stream assignment, and tell what streams gain.",
    "busy": "Compare compiles on a shared machine with one that has the machine alone.",
    "memory": "Tell how much memory a compile takes, by stage.",
    "search": "Time the op-level search against the exact solver.",
    "service": "Measure a compiled module as a service uses it.",
    "serve": "Compare Collage's serving engine with a static batch, request-level scheduling and other systems.",
    "cluster": "Tell how measuring scales with the workers of a Ray cluster.",
    "parallel": "Compare data, tensor, pipeline and Cache Parallelism at decoding with many cached tokens.",
    "versions": "Compare two versions of Collage on the same models.",
    "native-kernels": "Compare Collage's own convolutions with oneDNN's.",
    "native-layers": "Compare Collage's own kernels with oneDNN's on the layers of a model.",
    "native-experts": "Compare our products of experts with weights in float32, in bfloat16 and in 8 bits.",
    "precision": "Compare modules within a tolerance with float32 and with engines in their own precisions.",
    "accuracy": "Tell whether networks with real weights decide the same within a tolerance as in float32.",
    "precision-layers": "Compare float32 kernels with those that compute in bfloat16 on the layers of a model.",
    "constants": "Compare kernels planned for this machine with those planned for the one they were written on.",
    "tvm-kernels": "Compare Collage's TVM kernels with TVM's defaults and ONNX Runtime.",
    "gpu": "Check all parts on an NVIDIA GPU, and measure networks there against PyTorch.",
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


@click.group(
    "bench",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@TRACEBACK_OPTION
def main() -> None:
    """Measure Collage: whole models, single kernels, the search, and modules in a service.

    \b
    scripts/bench cpu                       the paper's five workloads against all engines
    scripts/bench cpu model.onnx --json     a model of yours
    scripts/bench COMMAND --help            what a command measures, with examples

    Results go to stdout and progress to stderr. Exit status: 0, 1 (the work failed), 2 (usage) or 130 (interrupted).
    """
