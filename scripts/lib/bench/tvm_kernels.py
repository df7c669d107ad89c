"""The command ``scripts/bench tvm-kernels``."""

from __future__ import annotations

import math

import click

from collage.cli.console import print_json, say
from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import only_option, seconds_option


@click.command("tvm-kernels")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@seconds_option(0.5, "Measuring time of a kernel.")
@only_option("kernels")
@JSON_OPTION
def command(threads: int, seconds: float, only: str, as_json: bool) -> None:
    """Compare Collage's TVM kernels with TVM's defaults and ONNX Runtime.

    The kernels are small memory-bound subgraphs. Each is first compared with a float64 reference computed by numpy,
    its output poisoned with NaN before. Times are medians in microseconds over rounds in turns; buffers are
    allocated before, for ONNX Runtime through I/O binding. Ratios are the peer's time over ours: above 1, ours is
    faster.

    \b
    Examples:
      scripts/bench tvm-kernels
      scripts/bench tvm-kernels --only softmax --threads 2 --json
    """
    from collage.backends.tvm_codegen.host import use_threads
    from scripts.lib.kernels.tvm_cases import CASES
    from scripts.lib.kernels.tvm_race import MAKERS, race

    use_threads(threads)
    rows = [race(each, threads, seconds) for each in CASES if only in each.name]
    if as_json:
        print_json({"threads": threads, "kernels": rows})
        return
    say(f"{threads} thread(s), median us")
    say(f"{'kernel':31}{'ours':>9}{'TVM':>10}{'ORT':>9}{'TVM/ours':>10}{'ORT/ours':>10}{'error':>10}")
    for row in rows:
        ours, tvm, ort = (row["us"][name] for name in MAKERS)
        error = row["max_abs_error"]["ours"]
        say(
            f"{row['case']:31}{ours:9.1f}{tvm:10.1f}{ort:9.1f}{tvm / ours:10.2f}{ort / ours:10.2f}{error:10.1e}"
        )
    if rows:
        gain = math.exp(sum(math.log(row["us"]["ort"] / row["us"]["ours"]) for row in rows) / len(rows))
        say(f"geometric mean ORT/ours {gain:.2f}")
