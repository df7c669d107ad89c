"""The command ``collage compile``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import click

from collage.cli.completion import complete_backends
from collage.cli.console import print_json, print_rich, print_table, say
from collage.cli.errors import log_lines, measurements_survive
from collage.cli.files import check_writable, refuse_same
from collage.cli.options import (
    BATCH_OPTION,
    DB_OPTION,
    JSON_OPTION,
    LEARNED_OPTION,
    MODEL_OR_ADDRESS_ARGUMENT,
    OUTPUT_OPTION,
    QUIET_OPTION,
    SEED_OPTION,
    SHAPE_SETS_OPTION,
    THREADS_OPTION,
    TRUST_OPTION,
    Count,
    Number,
    Seconds,
    flag,
    once_each,
    option,
    parse_input,
    parse_names,
    refuse_unused,
    sets_of,
)
from collage.cli.signals import stopping_first
from collage.core.extras import need_compiler
from collage.core.lean_imports import lean_imports
from collage.frontend.read.hub import downloaded
from collage.frontend.read.model_path import check_model_path


def _show_curve(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the points from the fastest to the slowest, with a mark for those on the frontier, and the files."""
    if as_json:
        print_json(found)
        return
    rows = [
        (
            name,
            f"{each['median_us'] / 1e3:.3f}",
            f"{each['error']:.1e}",
            "yes" if name in found["frontier"] else "",
        )
        for name, each in sorted(found["points"].items(), key=lambda point: point[1]["median_us"])
    ]
    say(f"error by {found['metric']} on {found['inputs']}")
    print_table(("contender", "ms", "error", "frontier"), rows, right=("ms", "error"))
    files = [*found["modules"].values(), *filter(None, [found["picture"]])]
    say(f"\nwrote {', '.join(files)}")


_TABLES = b"ai.onnx.ml"
_END = 1 << 16
"""The operator sets of an ONNX file are in the bytes at its end."""


def _import_tvm(model: Path) -> None:
    """Import TVM, unless the model may be one of tables, which TVM is not needed for."""
    with suppress(OSError), open(model, "rb") as stream:  # whoever reads the model says what is wrong
        stream.seek(max(0, model.stat().st_size - _END))
        if model.suffix.lower() != ".onnx" or _TABLES in stream.read():
            return
    with lean_imports():
        import collage.frontend.relax.importer
        import collage.patterns.relax_form  # noqa: F401


def _verbose(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.with_resource(log_lines("collage.compiler.stages", "collage.compiler.referee"))


@click.command()
@MODEL_OR_ADDRESS_ARGUMENT
@OUTPUT_OPTION
@option(
    "--backends",
    type=parse_names,
    shell_complete=complete_backends,
    metavar="A,B",
    help="Use only these; `collage backends` lists them. Default: all available.",
)
@SHAPE_SETS_OPTION
@LEARNED_OPTION
@BATCH_OPTION
@THREADS_OPTION
@DB_OPTION
@option(
    "--tune-trials",
    type=Count(min=0),
    default=0,
    metavar="N",
    help="Trials TVM may spend on tuning each kernel with a convolution or matrix product (0.5 s a trial).",
)
@option(
    "--time-limit",
    "time_limit_s",
    type=Seconds(finite=True),
    default=60.0,
    metavar="S",
    help="Seconds for building and timing one candidate; one that takes longer is rejected.",
)
@option(
    "--level",
    type=click.Choice(["op", "graph"]),
    default="op",
    help="graph: go on with a search that runs whole networks, in which an engine takes over more.",
)
@option(
    "--budget",
    "budget_s",
    type=Seconds(),
    metavar="SECONDS",
    help="Time for the whole compile; the best module by then is written. Default: as long as it takes "
    "(300 for the search of --level graph), 10 with --quick.",
)
@option(
    "--input",
    "inputs",
    type=parse_input,
    metavar="NAME=FILE.npy|SAMPLE.npz|FOLDER",
    multiple=True,
    help="Measure and check with this array instead of random numbers; it fixes the input's shape, too. A file .npz, "
    "or a folder of them, holds samples of all inputs, on which errors are measured (--tolerance).",
)
@flag(
    "--strict",
    help="Fail if a node cannot be converted and no library has a kernel for it, or if an engine has to run the whole "
    "model or its dynamic end.",
)
@flag(
    "--quick",
    help="Try few candidates with few samples. It takes seconds instead of minutes, but the choice is not sure.",
)
@option(
    "--effort",
    type=click.Choice(["usual", "exhaustive"]),
    default="usual",
    help="exhaustive: measure every candidate to the end, also those that lose to others after a few samples.",
)
@flag("--remeasure", help="Measure everything again.")
@flag("--exact", help="Use only kernels that were seen to keep NaN and infinities, and none that reassociates.")
@option(
    "--reassociate/--no-reassociate",
    default=True,
    help="Without it only direct algorithms are used: not Winograd's, which forms sums that the model does not.",
)
@option(
    "--tolerance",
    type=Number(min=0),
    default=0.0,
    show_default=False,
    metavar="ERROR",
    help="Largest allowed error of the outputs, such as 1e-2: kernels may compute in bfloat16 or 8 bits if that is "
    "faster. Default: float32.",
)
@option(
    "--metric",
    type=click.Choice(["max", "output", "top1", "cosine"]),
    default="max",
    help="The error that --tolerance bounds. max: the largest difference over the scale of its channel, row or column. "
    "output: over the scale of the whole output. top1: the share of decisions that differ. cosine: 1 - the cosine.",
)
@flag(
    "--pareto",
    help="Compile at several tolerances, a file each, and show time against error, with the engines beside. The extra "
    "`plots` draws a picture, OUT.pareto.svg.",
)
@option(
    "--device",
    default="auto",
    metavar="cpu|cuda|auto",
    help="cpu: compute on the CPU alone. cuda: fail if no NVIDIA GPU can be used. auto: use whatever is fastest.",
)
@option(
    "--cluster",
    metavar="ADDRESS",
    help="Measure on the nodes of this Ray cluster that match this machine: auto, HOST:PORT, ray://HOST:PORT or local.",
)
@TRUST_OPTION
@SEED_OPTION
@JSON_OPTION
@QUIET_OPTION
@flag(
    "-v",
    "--verbose",
    expose_value=False,
    callback=_verbose,
    help="Show the stages as they run, with seconds, gains, and each plan's time against the best one's.",
)
def compile(
    model: Path | str,
    output: Path,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    learned: Path | None,
    inputs: tuple[tuple[str, Path], ...],
    pareto: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Compile an ONNX model to the fastest mix of backends, and write one file.

    MODEL is an ONNX file, hf://owner/name or hf://owner/name/path.onnx on the Hugging Face Hub, or a model that
    LightGBM, XGBoost or CatBoost has saved, or joblib (see --trust).

    Every way of running each part of the model is measured once, in a worker process; the measurements are
    kept, so a second compile makes none. Ctrl-C, or the end of --budget, writes the best module so far: within seconds
    that is the fastest engine. The result is checked against ONNX Runtime and is never slower than the best engine that
    is installed. If shapes depend on data, an engine runs the model from there on. A model that cannot be cut into
    parts at all runs whole on the fastest engine. `collage show` gives the reason.

    \b
    Examples:
      collage compile model.onnx -o model.collage
      collage compile model.onnx -o model.collage --backends tvm,onnxruntime --threads 1
      collage compile bert.onnx -o bert.collage --shape input_ids:1x128 --shape attention_mask:1x128
      collage compile detector.onnx -o detector.collage --input image=image.npy
      collage compile model.onnx -o model.collage --json > report.json
      collage compile model.onnx -o model.collage --budget 60
      collage compile booster.txt -o booster.collage
      collage compile hf://owner/name -o model.collage
      collage compile model.onnx -o model.collage --level graph --budget 600
      collage compile model.onnx -o model.collage --cluster auto
      collage compile model.onnx -o model.collage --tolerance 1e-2 --input samples/

    \b
    One file for several shapes, each with a placement of its own:
      collage compile bert.onnx -o bert.collage --shape input_ids:1x64 --shape attention_mask:1x64 \\
                                                --shape input_ids:1x128 --shape attention_mask:1x128
    """
    sets = sets_of(shapes)
    if learned is not None:
        if shapes:
            raise click.UsageError("--shapes FILE has the shapes: leave out --shape", click.get_current_context())
        from collage.module.learned import frequent_shapes

        sets = [*frequent_shapes(learned)]
    single = len(sets) == 1 and learned is None
    files = once_each("--input", [(name, path) for name, path in inputs if name])
    sample_paths = [path for name, path in inputs if not name]
    context = click.get_current_context()
    if files and sample_paths:
        raise click.UsageError("--input takes NAME=FILE.npy or samples (.npz), not both", context)
    for name, given in (("--pareto", pareto), ("--input", inputs), ("--batch", options["batch"])):
        if given and not single:
            raise click.UsageError(f"{name} is for one set of shapes", context)
    if not (options["tolerance"] or pareto):
        refuse_unused("--metric", "--tolerance or --pareto")
    if isinstance(model, str):
        check_writable(output, (".collage",))
        model = downloaded(model, quiet=quiet)
    check_model_path(model)
    refuse_same(model, output, "--output", ".collage")
    check_writable(output, (".collage",))
    if pareto:
        from collage.bench.pareto import curve_files, picture_file

        for each in (*curve_files(output, options["tolerance"]).values(), picture_file(output)):
            refuse_same(model, each, "--pareto", ".collage")
            check_writable(each, (each.suffix,))
    need_compiler()
    with measurements_survive(writes=not pareto), stopping_first():
        from collage import api
        from collage.cli.arrays import read_arrays, read_samples
        from collage.report.progress_display import display

        with display(not quiet) as progress:
            # Nobody needs TVM before the engines have run the model, and a process waits for these meanwhile.
            Thread(target=_import_tvm, args=(model,), daemon=True).start()
            options["progress"] = progress
            if single:
                options["shapes"] = sets[0]
                options["inputs"] = read_samples(sample_paths) if sample_paths else read_arrays(files)
            if pareto:
                from collage.bench.pareto import compiled_curve

                curve = compiled_curve(model, output, options)
            else:
                module = api.compile(model, **options) if single else api.compile_shapes(model, sets, **options)
                module.save(output)
    if pareto:
        _show_curve(curve, as_json=as_json)
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
