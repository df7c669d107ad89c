"""The command ``scripts/bench gpu``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from collage.cli.options import JSON_OPTION

_WORKLOADS = (
    "mlp",
    "dcgan",
    "bert_base",
    "resnext50_32x4d",
    "inception_v3",
    "nasnet_a_mobile",
    "resnet50_3d",
)
_BACKENDS = ("tvm_cuda", "cublas", "cudnn")
_ON_CPU = ("tvm", "onednn", "mkl", "native", "onnxruntime", "openvino")


@click.command("gpu")
@click.argument("workloads", nargs=-1)
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 16),
    help="Batches. By default 1 and 16.",
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(["float32", "float16"]),
    multiple=True,
    default=("float32", "float16"),
    help="Precisions of the networks: float32, without TF32, and float16. By default both.",
)
@click.option("--seconds", type=float, default=560.0, show_default=True, help="The time for everything.")
@click.option("--budget", type=float, default=60.0, show_default=True, help="Seconds of each compile.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("gpu.json"), show_default=True)
@click.option(
    "--continue",
    "earlier",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The results of an earlier run, whose parts that have ended by themselves are not run again.",
)
@click.option("--rivals/--no-rivals", default=True, help="Whether torch.compile takes part, which takes minutes.")
@click.option("--small", is_flag=True, help="Small networks, to try the command.")
@JSON_OPTION
def command(
    *,
    workloads: tuple[str, ...],
    batches: tuple[int, ...],
    precisions: tuple[str, ...],
    seconds: float,
    budget: float,
    out: Path,
    earlier: Path | None,
    rivals: bool,
    small: bool,
    as_json: bool,
) -> None:
    """Check all parts on an NVIDIA GPU, and measure networks there against PyTorch.

    The checks come first: memory, scans, single kernels of each backend, a CUDA graph with streams, and whole models on
    each engine. Then each network is compiled, compared with ONNX Runtime on the CPU, and takes turns with PyTorch as
    it is and PyTorch in a CUDA graph. Its launches are compared on one stream and on those of Nimble and Opara, and the
    idle time between kernels is read off a profile. Small networks are also compiled for the CPU, and for wherever they
    are faster. Then each network meets the engines that are installed and torch.compile with max-autotune, which takes
    minutes. All this is done with batch 1 in float32 first, and then with the other batches and precisions.

    Each part is a process with a share of the time, and the file is whole after each step of each part: a run that is
    cut off keeps its results, and --continue does what it has left out. docs/gpu.md says how to run it on a machine
    that is there for minutes.

    \b
    Examples:
      scripts/bench gpu
      scripts/bench gpu --continue gpu.json
      scripts/bench gpu dcgan bert_base --batch 1 --batch 16 --no-rivals
      scripts/bench gpu bert_base --precision float16 --precision float32
      scripts/bench gpu --small --seconds 120
    """
    from collage.cli.console import print_json
    from collage.core.cuda import NoGpuError, gpu
    from collage.errors import UsageError, unknown_names
    from scripts.lib.gpu.parts import parts_of, run_parts
    from scripts.lib.gpu.task import MLP, Task
    from scripts.lib.workloads.catalogue import ENTRIES

    chosen = workloads or _WORKLOADS
    if unknown := [name for name in chosen if name not in (MLP, *ENTRIES)]:
        raise unknown_names("workload", unknown, (MLP, *ENTRIES))
    try:
        found = gpu()
    except NoGpuError as error:
        raise UsageError(f"this benchmark runs on an NVIDIA GPU only, and {error}.") from error
    before = {} if earlier is None else earlier_parts(earlier, found.name)
    with tempfile.TemporaryDirectory() as folder:
        tasks = [
            Task(name, batch, precision, device, backends, budget, rivals and device == "cuda", folder, small)
            for precision in precisions
            for batch in batches
            for name in chosen
            for device, backends in _ways(name, batch)
        ]
        head = {
            "gpu": found.name,
            "architecture": found.architecture,
            "tasks": [each.plain() for each in tasks],
        }
        results = run_parts([*parts_of(tasks)], out, seconds, head, before)
    if as_json:
        print_json(results)
        return
    for name, part in results["parts"].items():
        times = part.get("times with torch.compile") or part.get("times") or {}
        click.echo(f"{name}: {part.get('ended') or part.get('left out') or times.get('best rival over collage', 'ok')}")
    click.echo(f"all results are in {out}")


def _ways(name: str, batch: int) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The devices that a network is compiled for, with the backends: small ones also wherever they are faster."""
    on_gpu = "cuda", _BACKENDS
    if name not in ("mlp", "dcgan") or batch != 1:
        return (on_gpu,)
    return on_gpu, ("cpu", _ON_CPU), ("auto", (*_BACKENDS, *_ON_CPU))


def earlier_parts(path: Path, gpu: str) -> Mapping[str, Any]:
    """The parts of an earlier run on a GPU of that name. Raises UsageError for another file."""
    from collage.errors import UsageError

    try:
        found = json.loads(path.read_text())
        parts, there = found["parts"], found["gpu"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} has no results of this benchmark.") from error
    if there != gpu:
        raise UsageError(f"{path} has results of {there}, and this is {gpu}.")
    return dict(parts)
