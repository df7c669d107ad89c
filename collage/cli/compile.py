"""The command ``collage compile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from collage.cli.console import print_json, print_rich, say
from collage.cli.errors import measurements_survive
from collage.cli.files import check_writable, refuse_same
from collage.cli.options import (
    DB_OPTION,
    JSON_OPTION,
    MODEL_ARGUMENT,
    QUIET_OPTION,
    SEED_OPTION,
    SHAPE_SETS_OPTION,
    THREADS_OPTION,
    Count,
    Number,
    Seconds,
    once_each,
    parse_input,
    parse_names,
    refuse_unused,
    sets_of,
)
from collage.cli.pareto import check_curve, compiled_curve, show_curve
from collage.cli.signals import stopping_first
from collage.core.lean_imports import lean_imports
from collage.frontend.read.model_path import check_model_path


@click.command()
@MODEL_ARGUMENT
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="OUT.collage",
    type=click.Path(path_type=Path),
    help="The file to write; `collage run` and `collage.load` take it.",
)
@click.option(
    "--backends",
    type=parse_names,
    metavar="A,B",
    help="Use only these; `collage backends` lists them. Default: all available.",
)
@SHAPE_SETS_OPTION
@THREADS_OPTION
@DB_OPTION
@click.option(
    "--tune-trials",
    type=Count(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Trials TVM may spend on tuning each kernel with a convolution or matrix product (0.5 s a trial).",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=Seconds(finite=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds for building and timing one candidate; one that takes longer is rejected.",
)
@click.option(
    "--level",
    type=click.Choice(["op", "graph"]),
    default="op",
    show_default=True,
    help="graph: go on with a search that runs whole networks, in which an engine takes over more.",
)
@click.option(
    "--budget",
    "budget_s",
    type=Seconds(),
    metavar="SECONDS",
    help="Time for the whole compile; the best module by then is written. Default: as long as it takes "
    "(300 for the search of --level graph), 10 with --quick.",
)
@click.option(
    "--input",
    "inputs",
    type=parse_input,
    metavar="NAME=FILE.npy|SAMPLE.npz|FOLDER",
    multiple=True,
    help="Measure and check with this array instead of random numbers; it fixes the input's shape, too. A file .npz, "
    "or a folder of them, holds samples of all inputs, on which errors are measured (--tolerance).",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail if a node cannot be converted and no library has a kernel for it, or if an engine has to run the whole "
    "model or its dynamic end.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Try few candidates with few samples. It takes seconds instead of minutes, but the choice is not sure.",
)
@click.option(
    "--effort",
    type=click.Choice(["usual", "exhaustive"]),
    default="usual",
    show_default=True,
    help="exhaustive: measure every candidate to the end, also those that lose to others after a few samples.",
)
@click.option(
    "--remeasure",
    is_flag=True,
    help="Measure everything again, for example when the machine was busy before.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="Use only kernels that were seen to keep NaN and infinities, and none that reassociates.",
)
@click.option(
    "--reassociate/--no-reassociate",
    default=True,
    help="Without it only direct algorithms are used: not Winograd's, which forms sums that the model does not.",
)
@click.option(
    "--tolerance",
    type=Number(min=0),
    default=0.0,
    metavar="ERROR",
    help="Largest allowed error of the outputs, such as 1e-2: kernels may compute in bfloat16 or 8 bits if that is "
    "faster. Default: float32.",
)
@click.option(
    "--metric",
    type=click.Choice(["max", "output", "top1", "cosine"]),
    default="max",
    show_default=True,
    help="The error that --tolerance bounds. max: the largest difference over the scale of its channel, row or column. "
    "output: over the scale of the whole output. top1: the share of decisions that differ. cosine: 1 - the cosine.",
)
@click.option(
    "--pareto",
    is_flag=True,
    help="Compile at several tolerances, a file each, and show time against error, with the engines beside. The extra "
    "`plots` draws a picture, OUT.pareto.svg.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="cpu|cuda|auto",
    help="cpu: compute on the CPU alone. cuda: fail if no NVIDIA GPU can be used. auto: use whatever is fastest.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Measure on the nodes of this Ray cluster that match this machine: auto, HOST:PORT, ray://HOST:PORT or local.",
)
@SEED_OPTION
@JSON_OPTION
@QUIET_OPTION
def compile(
    model: Path,
    output: Path,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    inputs: tuple[tuple[str, Path], ...],
    pareto: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Compile an ONNX model to the fastest mix of backends, and write one file.

    Every way of running each part of the model is measured once, in a worker process; the measurements are
    kept, so a second compile makes none. Ctrl-C, or the end of --budget, writes the best module so far: within seconds
    that is the fastest engine. The result is checked against ONNX Runtime and is never slower than
    the best engine that is installed (with --quick no engine is compared, and it may be). Where shapes depend on
    data, an engine runs the model from there on. A model that cannot be cut into parts at all runs whole on the
    fastest engine. `collage show` tells why.

    \b
    Examples:
      collage compile model.onnx -o model.collage
      collage compile model.onnx -o model.collage --backends tvm,onnxruntime --threads 1
      collage compile bert.onnx -o bert.collage --shape input_ids:1x128 --shape attention_mask:1x128
      collage compile detector.onnx -o detector.collage --input image=image.npy
      collage compile model.onnx -o model.collage --json > report.json
      collage compile model.onnx -o model.collage --budget 60
      collage compile model.onnx -o model.collage --level graph --budget 600
      collage compile model.onnx -o model.collage --cluster auto
      collage compile model.onnx -o model.collage --tolerance 1e-2 --input samples/

    \b
    One file for several shapes, each with a placement of its own:
      collage compile bert.onnx -o bert.collage --shape input_ids:1x64 --shape attention_mask:1x64 \\
                                                --shape input_ids:1x128 --shape attention_mask:1x128
    """
    sets = sets_of(shapes)
    files = once_each("--input", [(name, path) for name, path in inputs if name])
    sample_paths = [path for name, path in inputs if not name]
    context = click.get_current_context()
    if files and sample_paths:
        raise click.UsageError("--input takes NAME=FILE.npy or samples (.npz), not both", context)
    for option, given in (("--pareto", pareto), ("--input", inputs)):
        if given and len(sets) > 1:
            raise click.UsageError(f"{option} is for one set of shapes", context)
    if not (options["tolerance"] or pareto):
        refuse_unused("--metric", "--tolerance or --pareto")
    check_model_path(model)
    refuse_same(model, output, "--output", ".collage")
    check_writable(output)
    if pareto:
        check_curve(model, output, options["tolerance"])
    with measurements_survive(writes=not pareto), stopping_first():
        from collage import api
        from collage.cli.arrays import read_arrays, read_samples
        from collage.report.progress_display import display

        with display(not quiet) as progress:
            with lean_imports():
                import collage.compiler.compile  # noqa: F401  (TVM, before anything else imports it)
            options["progress"] = progress
            if len(sets) == 1:
                options["shapes"] = sets[0]
                options["inputs"] = read_samples(sample_paths) if sample_paths else read_arrays(files)
            if pareto:
                curve = compiled_curve(model, output, options)
            else:
                module = (
                    api.compile(model, **options)
                    if len(sets) == 1
                    else api.compile_shapes(model, sets, **options)
                )
                module.save(output)
    if pareto:
        show_curve(curve, as_json=as_json)
        return
    from collage.cli.show import summary_view
    from collage.module.file import read_summary
    from collage.report.show import size

    summary = read_summary(output)
    if as_json:
        print_json({**module.summary(), "original_bytes": summary.model_bytes, "output": str(output)})
        return
    print_rich(summary_view(summary))
    say(f"\nwrote {output} ({size(output.stat().st_size)})")
