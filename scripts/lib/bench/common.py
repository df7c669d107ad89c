"""What the subcommands share: options, the models to run, the head of the JSON object, and tables."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from collage.cli.console import print_json, print_rich
from collage.cli.options import DB_OPTION, THREADS_OPTION
from collage.errors import CollageError, UsageError, unknown_names
from scripts.lib import INTERRUPTED, ROOT, say
from scripts.lib.workloads.catalogue import PAPER, SUMMARIES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from collage.core.progress import Progress
    from collage.report.report import Report
    from collage.schedule.program import Program

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Show = Callable[["Progress"], None]

FOLDER_OPTION = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default="models",
    show_default=True,
    metavar="DIR",
    help="Folder of the models' files, which are made when they are missing.",
)


def rounds_option(default: int | None) -> Callable[[F], F]:
    """The option ``--rounds``."""
    return click.option(
        "--rounds",
        type=click.IntRange(min=1),
        default=default,
        show_default=default is not None,
        metavar="R",
        help="Rounds; in each, every contender has a turn.",
    )


@dataclass(frozen=True)
class Options:
    """The options of all races: threads, rounds, the seconds of each compile, and the database."""

    threads: int
    rounds: int
    budget_s: float | None = None
    db: Path | None = None


def takes_options(rounds: int) -> Callable[[F], Callable[..., Any]]:
    """Give a command its threads, rounds, budget and database as the parameter ``options``."""
    budget = click.option(
        "--budget",
        "budget_s",
        type=click.FloatRange(min=0, min_open=True),
        metavar="S",
        help="Seconds of each compile (default: as many as it takes).",
    )

    def decorate(command: F) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(threads: int | None, rounds: int, budget_s: float | None, db: Path | None, **given: Any) -> Any:
            return command(options=Options(threads_of(threads), rounds, budget_s, db), **given)

        return THREADS_OPTION(rounds_option(rounds)(budget(DB_OPTION(call))))

    return decorate


def threads_of(threads: int | None) -> int:
    """The threads that were asked for, or else the usable cores."""
    from collage.kernel.target import usable_cores

    return threads or usable_cores()


def find_models(names: Sequence[str], folder: Path, batch: int = 1) -> dict[str, Path]:
    """Paths of the models by name; no names stand for the paper's five workloads, and missing ones are made.

    Workloads of a batch above 1 have a folder of their own. Raises UsageError for unknown names, and CollageError.
    """
    names = names or PAPER
    given = [name for name in names if name not in SUMMARIES]
    unknown = [name for name in given if not name.endswith(".onnx")]
    if unknown:
        raise unknown_names("model", unknown, [*SUMMARIES, "the path of an .onnx file"])
    if given and batch != 1:
        raise UsageError(f"--batch is for the workloads, not for files: {', '.join(given)}.")
    home = folder if batch == 1 else folder / f"batch-{batch}"
    paths = {name: home / f"{name}.onnx" if name in SUMMARIES else Path(name) for name in names}
    if missing := [name for name in paths if name in SUMMARIES and not paths[name].exists()]:
        script = str(ROOT / "scripts" / "models")
        command = [sys.executable, script, *missing, "--out", str(home), "--batch", str(batch)]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise CollageError(f"scripts/models could not make {', '.join(missing)} in {home}; see above.")
    return paths


def each(
    items: Mapping[str, T],
    study: Callable[[T, Show], Mapping[str, Any]],
    *,
    models: Sequence[Mapping[str, Any]] = (),
    save: Callable[[Mapping[str, Any]], object] = lambda _: None,
) -> tuple[int, dict[str, Any]]:
    """Run a study on each item; exit status, and ``models`` and ``failed`` of the JSON object.

    An item that fails, for whatever reason, does not stop the others. After Ctrl-C the results so far are returned.
    ``models`` are earlier results, which come first. ``save`` gets what is there after each item.
    """
    from collage.report.progress_display import display

    found: dict[str, Any] = {"models": [*models], "failed": {}}
    status = 0
    for name, item in items.items():
        say(name)
        try:
            with display(True) as show:
                found["models"].append(study(item, show))
        except KeyboardInterrupt:
            say("interrupted; measurements made so far are kept")
            return INTERRUPTED, found
        except Exception as error:
            found["failed"][name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            say(f"error: {name}: {found['failed'][name]}")
            status = 1
        save(found)
    return status, found


def run_collage(*arguments: object, of: Path = ROOT, variables: Mapping[str, str] | None = None) -> Any:
    """The JSON object that a command prints, in a process of its own, in the checkout ``of``. Raises CollageError."""
    done = subprocess.run(
        [sys.executable, "-m", "collage", *map(str, arguments), "--json"],
        env={**os.environ, "PYTHONPATH": str(of), **(variables or {})},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CollageError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return json.loads(done.stdout)


def compile_to(file: Path, model: Path, options: Options, show: Show, **arguments: Any) -> tuple[Report, Program]:
    """Compile ``model`` to ``file``; ``arguments`` go to ``collage.compile``. The module itself is not kept."""
    import collage

    arguments |= {"threads": options.threads, "budget_s": options.budget_s, "db": options.db}
    module = collage.compile(model, progress=show, **arguments)
    module.save(file)
    program = module.modules[0].program if isinstance(module, collage.ShapedModule) else module.program
    return module.report, program


def head(threads: int, **more: Any) -> dict[str, Any]:
    """The first entries of each JSON object: when, what, where and how it was measured, and options of the study."""
    from collage.kernel.target import host

    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout if shutil.which("git") else ""
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": commit.strip() or None,
        "machine": _machine(),
        "command": shlex.join([f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "target": str(host(threads)),
        "threads": threads,
        **more,
    }


def _machine() -> str:
    """The processor's name, the usable cores, and the memory."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {gib:.0f} GiB"


def show_results(found: Mapping[str, Any], view: Iterable[RenderableType], *, as_json: bool) -> None:
    """Print the JSON object, or else the machine and the view."""
    if as_json:
        print_json(found)
    else:
        print_rich(found["target"], *view)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is on the left, and the others are on the right."""
    from collage.report import show_terminal

    numbers = titles[1:]
    return show_terminal.table(titles, rows, right=numbers, folded=dict.fromkeys(numbers))


def ms(timing: Mapping[str, Any] | None) -> str:
    """The median of a timing in milliseconds; a dash if there is none."""
    return f"{timing['median_us'] / 1e3:.2f}" if timing else "-"


def failures(result: Mapping[str, Any]) -> list[str]:
    """A line for each contender that failed."""
    return [
        f"{result['model']}: {name} failed: {' '.join(why.split())[:300]}" for name, why in result["failed"].items()
    ]
