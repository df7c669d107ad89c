"""The command ``scripts/bench versions``: the yardstick of a change that should change nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from collage.cli.console import print_json
from collage.errors import CollageError
from scripts.lib import ROOT
from scripts.lib.bench.common import run_collage

OLD = ROOT / "tests" / "data" / "old"
MODELS = {
    "dcgan": ("compile",),
    "resnet50": ("compile",),
    "nasnet_a_mobile": ("compile", "--budget", "60"),
    "ssd_mobilenet": ("compile",),
    "strings": ("compile",),
    "tolerance": ("compile", "--tolerance", "5e-2"),
    "gpt2_124m": ("compile-decoder", "--buckets", "1,8"),
}
KEPT = "predicted_us measured_us max_abs_error measurements_made search_s costs_ms max_error notes".split()


@click.command("versions")
@click.argument("models", nargs=-1, type=click.Choice([*MODELS, "old"]))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for modules and results.json.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("models"), help="Folder of the ONNX files.")
@click.option("--of", type=click.Path(path_type=Path), default=ROOT, help="Checkout to run. Default: this one.")
def command(models: tuple[str, ...], out: Path, folder: Path, of: Path) -> None:
    """Compile seven models, and read the files of an old version: placements, times, measurements, errors.

    \b
    scripts/bench versions --of ../before --out /tmp/before
    scripts/bench versions --out /tmp/after
    scripts/bench cpu dcgan nasnet_a_mobile --before /tmp/before
    """
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name in models or (*MODELS, "old"):
        click.echo(f"bench: {name}", err=True)
        if name == "old":
            found[name] = _old(of)
            continue
        model = next((each for each in (folder / f"{name}.onnx", OLD / f"{name}.onnx") if each.exists()), None)
        if model is None:
            raise CollageError(f"No {name}.onnx in {folder}: scripts/models or scripts/demo_model makes it.")
        found[name] = _compiled(name, model, of, out)
    (out / "results.json").write_text(json.dumps(found, indent=1))
    print_json(found)


def _run(of: Path, *arguments: str | Path) -> Any:
    """The JSON object that a command of the checkout ``of`` prints, or its last line of error."""
    try:
        return run_collage(*arguments, of=of)
    except CollageError as error:
        return {"error": str(error)}


def _compiled(name: str, model: Path, of: Path, out: Path) -> dict[str, Any]:
    command, *options = MODELS[name]
    found = _run(of, command, model, "-o", out / f"{name}.collage", "--db", out / f"{name}.sqlite", *options)
    regions = [f"{each['backend']}: {' '.join(each['ops'])}" for each in found.get("regions", ())]
    return {key: found[key] for key in ("error", *KEPT) if key in found} | {"regions": regions}


def _old(of: Path) -> dict[str, Any]:
    """Verify and run each old module, and compile again with the old database: it should measure nothing."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as text:
        shutil.copy(OLD / "old.sqlite", text)
        for module in sorted(OLD.glob("*.collage")):
            ran = {} if module.stem == "decoder" else _run(of, "run", module, "--random")
            found[module.stem] = _run(of, "verify", module).get("error") or ran.get("error") or "loads"
        new, db = Path(text, "new.collage"), Path(text, "old.sqlite")
        again = _run(of, "compile", OLD / "mix.onnx", "-o", new, "--db", db)
        found["measured again"] = again["measurements_made"]
    return found
