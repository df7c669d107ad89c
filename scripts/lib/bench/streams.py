"""The command ``scripts/bench streams``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import Models, takes_models, takes_options
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from collage.bench.compiled import Options

TABLE_1 = ("bert_base", "googlenet", "inception_v3", "t5_small", "nasnet_a_mobile")
ASSIGNMENT_ROUNDS, RUN_ROUNDS = 101, 30


@click.command("streams")
@takes_models
@click.option("--run", is_flag=True, help="Compile the models and run them.")
@takes_options(rounds=None)
@JSON_OPTION
def command(*, models: Models, run: bool, options: Options, as_json: bool) -> None:
    """Time stream assignment, and tell what streams gain.

    Without --run, Opara's greedy assignment and Nimble's matching take turns on the same graphs in one process, for
    101 rounds: Table I of the Opara paper. With --run, launches in streams are compared with launches one after
    another, with OpenVINO and with ONNX Runtime, each in a process of its own, for 30 rounds. Models are workloads or
    .onnx files; the default is Table I's, and with --run the paper's five workloads and Inception-v3.

    \b
    Examples:
      scripts/bench streams
      scripts/bench streams --run nasnet_a_mobile
      scripts/bench streams --run --json
    """
    from collage.report.progress_display import display
    from scripts.lib.studies import tables
    from scripts.lib.studies.assignment import assignment
    from scripts.lib.studies.each import say
    from scripts.lib.studies.streams import side_by_side
    from scripts.lib.workloads.catalogue import PAPER

    results = []
    if not run:
        for model in models.find(TABLE_1):
            results.append(assignment(model, options.rounds or ASSIGNMENT_ROUNDS))
        show({**head(options.threads), "assignment": results}, tables.assignments(results), as_json=as_json)
        return
    options = replace(options, rounds=options.rounds or RUN_ROUNDS)
    for model in models.find((*PAPER, "inception_v3")):
        say(str(model))
        with display(True) as progress:
            results.append(side_by_side(model, options, progress))
    show({**head(options.threads), "streams": results}, tables.streams(results), as_json=as_json)
