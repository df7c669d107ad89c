"""The command ``collage run``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from collage.cli.console import print_json, print_table, say
from collage.cli.files import check_writable, make_folder, refuse_same
from collage.cli.options import (
    FILE_ARGUMENT,
    JSON_OPTION,
    PATH,
    SEED_OPTION,
    flag,
    once_each,
    option,
    parse_file_of,
)
from collage.core.new_file import new_file


@click.command()
@FILE_ARGUMENT
@option(
    "--input",
    "inputs",
    type=parse_file_of,
    metavar="NAME=FILE.npy",
    multiple=True,
    help="An input's array; once for each input.",
)
@flag("--random", help="Fill inputs that are not given with seeded random data.")
@SEED_OPTION
@option("--output-dir", metavar="DIR", type=PATH, help="Save each output there as NAME.npy.")
@option(
    "--trace",
    metavar="FILE.json",
    type=PATH,
    help="Write a time line of a warm run there, a row for each thread; open it at ui.perfetto.dev.",
)
@option(
    "--verify/--no-verify",
    default=True,
    show_default=False,
    help="Compare the whole file with its digests before it is loaded, or only the parts that may be code. "
    "Default: the whole file.",
)
@JSON_OPTION
def run(
    file: Path,
    inputs: tuple[tuple[str, Path], ...],
    random: bool,
    seed: int,
    output_dir: Path | None,
    trace: Path | None,
    verify: bool,
    as_json: bool,
) -> None:
    """Run a compiled model once and describe its outputs.

    A module file is a program: it holds machine code, which runs with your rights. Run only files from people whose
    programs you would run; `collage show` is safe on any file.

    \b
    Examples:
      collage run model.collage --input image=image.npy --output-dir out
      collage run bert.collage --input input_ids=ids.npy --input attention_mask=mask.npy
      collage run model.collage --random
      collage run model.collage --random --trace trace.json
    """
    import numpy as np

    from collage import api
    from collage.cli.arrays import describe_array, fill_inputs, flat, read_arrays, save_arrays
    from collage.errors import refuse_fixed
    from collage.module.file import closest, read_summary
    from collage.runtime.inputs import collect_inputs

    summary = read_summary(file)
    given = read_arrays(once_each("--input", inputs))
    report, program = closest(summary, {name: array.shape for name, array in given.items()})
    refuse_fixed(given, report.fixed)
    arrays = fill_inputs(program.model_inputs, given, np.random.default_rng(seed) if random else None)
    if not summary.fallback:
        collect_inputs(
            program.model_inputs, (), arrays, program.assumed
        )  # before the kernels are loaded, which may take seconds
    if output_dir is not None:
        make_folder(output_dir)
    if trace is not None:
        for path in (file, *(path for _, path in inputs)):
            refuse_same(path, trace, "--trace", ".json")
        check_writable(trace, (".json",))
    module = api.load(file, verify=verify)
    outputs = flat(module.run(arrays))
    files = save_arrays(output_dir, outputs) if output_dir is not None else {}
    if trace is not None:
        with new_file(trace) as stream:
            stream.write(json.dumps(module.trace(arrays)).encode())
    found = [
        {**describe_array(name, array), "file": str(files[name]) if name in files else None}
        for name, array in outputs.items()
    ]
    if as_json:
        print_json({"outputs": found, **({"trace": str(trace)} if trace is not None else {})})
        return
    rows = [
        (
            each["name"],
            each["dtype"],
            "x".join(map(str, each["shape"])) or "scalar",
            *("" if each[key] is None else f"{each[key]:.6g}" for key in ("min", "max", "mean")),
            each["file"] or "not saved",
        )
        for each in found
    ]
    print_table(("output", "dtype", "shape", "min", "max", "mean", "saved as"), rows)
    for name, path in files.items():
        if path.name != f"{name}.npy":
            say(f"{name} is saved as {path}")
    if trace is not None:
        say(f"wrote {trace}")
