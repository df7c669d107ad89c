"""The command ``collage``: its options and its subcommands."""

from __future__ import annotations

import click

from collage._version import __version__
from collage.cli.backends import backends
from collage.cli.bench import bench
from collage.cli.check_backend import check_backend
from collage.cli.compile import compile
from collage.cli.compile_decoder import compile_decoder
from collage.cli.db import db
from collage.cli.doctor import doctor
from collage.cli.errors import TRACEBACK_OPTION, CollageGroup
from collage.cli.graphpipe import graphpipe
from collage.cli.new_backend import new_backend
from collage.cli.run import run
from collage.cli.serve import serve
from collage.cli.show import show, verify
from collage.cli.windtunnel import windtunnel


@click.group(
    "collage",
    cls=CollageGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, message="collage %(version)s")
@TRACEBACK_OPTION
def main() -> None:
    """Compile an ONNX model to the fastest mix of the kernel libraries and engines on this machine.

    \b
    collage compile model.onnx -o model.collage    measure, place, check, write
    collage show model.collage                     what runs where, and why
    collage run model.collage --random             run it
    collage serve decoder.collage                  serve it to clients
    collage bench model.onnx                       compare it with each engine alone
    collage windtunnel fit pipeline.joblib ...     fine-tune a pipeline of scikit-learn as one network
    collage graphpipe plan graph.json ...          plan a training pipeline

    Exit status: 0, 1 (the work failed), 2 (usage), or 128 and the number of the signal that ended the command.
    """


for _command in (
    compile,
    compile_decoder,
    run,
    serve,
    show,
    bench,
    verify,
    backends,
    check_backend,
    new_backend,
    db,
    graphpipe,
    doctor,
    windtunnel,
):
    main.add_command(_command)
