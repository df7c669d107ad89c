"""A process that loads or compiles one file after another, and runs each once, until its pipe closes.

Started by ``scripts.lib.fuzzing.main``, never by hand: what a file does to this process, that one survives.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import resource
import tempfile
import traceback
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collage.core.child_process import read_message, take_over_pipes, write_message
from scripts.lib.case_pool import Outcome

OK, ERROR, FAULT = "ok", "clean error", "traceback"
"""Statuses: the file ran, or ended in a CollageError, or in any other exception."""

_MOST_BYTES = 12 << 30
"""The limit of the address space. A request for more memory fails at once."""
_LONGEST_ERROR = 1200


@dataclass(frozen=True)
class Start:
    """The first message: "module" or "model", and the backends that models are compiled with."""

    kind: str
    backends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A file to load or compile. Reply: Outcome."""

    path: str
    seed: int


def main() -> None:
    """Serve one parent until its pipe closes."""
    source, sink = take_over_pipes()
    warnings.simplefilter("ignore")
    logging.getLogger("collage").addHandler(logging.NullHandler())
    try:
        start: Start = read_message(source)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with tempfile.TemporaryDirectory(prefix="collage-fuzz-") as folder:
            run = _modules() if start.kind == "module" else _models(start.backends, Path(folder))
            write_message(sink, None)
            while True:
                case: Case = read_message(source)
                write_message(sink, _outcome(run, case))
    except (EOFError, BrokenPipeError):
        return


def _outcome(run: Callable[[Case], None], case: Case) -> Outcome:
    from collage.errors import CollageError

    faulthandler.enable()  # again for each case: libraries that are loaded on the way take signals for themselves
    try:
        run(case)
    except CollageError as error:
        text = " ".join(str(error).split())
        if len(text) > _LONGEST_ERROR or "Traceback" in text or ", line " in text:
            return Outcome(FAULT, f"an error of {len(text)} characters: {text}")
        return Outcome(ERROR, text)
    except Exception:  # a fault of any kind is what this process looks for
        return Outcome(FAULT, traceback.format_exc())
    return Outcome(OK)


def _modules() -> Callable[[Case], None]:
    """A function that shows a module file, loads it, and runs it with guarded buffers and as it is."""
    from scripts.lib.fuzzing import guard

    guard.install()
    import numpy as np

    import collage
    from collage.cli.arrays import fill_inputs
    from collage.module.shaped import ShapedModule
    from collage.runtime.executor import Executor

    def run(case: Case) -> None:
        rng = np.random.default_rng(case.seed)
        _show(Path(case.path))
        loaded = collage.load(case.path, verify=True)
        for module in loaded.modules if isinstance(loaded, ShapedModule) else [loaded]:
            arrays = fill_inputs(module.program.model_inputs, {}, rng)
            if isinstance(module.executor, Executor):
                sizes = {v: module.program.types[v].nbytes for v in module.program.memory.offsets}
                guarded = module.executor.clone(guard.buffers_of(sizes))
                guarded.run([arrays[port.name] for port in module.program.inputs])
            module.run(arrays)

    return run


def _show(path: Path) -> None:
    """Do what ``collage show`` does with a file. Raises ValueError for text that a terminal takes as a command."""
    import json

    from rich.console import Console

    from collage.cli.console import Printable
    from collage.cli.show import summary_view
    from collage.module.file import read_suffix_models, read_summary
    from collage.module.module import summary_of
    from collage.report.page_data import ShownModule
    from collage.report.show_html import as_page, as_tables
    from collage.report.show_terminal import explanation

    summary = read_summary(path)
    models = read_suffix_models(path)
    page = as_page([ShownModule(*each, model) for each, model in zip(summary.modules, models, strict=True)])
    json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    if any("<script" in as_tables(*each) for each in summary.modules):
        raise ValueError("the tables have a script")
    text = io.StringIO()
    console = Console(file=text, markup=False, highlight=False, emoji=False, width=160)
    console.print(Printable(summary_view(summary)))
    for report, program in summary.modules:
        console.print(Printable(explanation(list(enumerate(report.explain(program.regions))))))
        json.dumps(summary_of(report, program))
    wrong = {each for each in text.getvalue() if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Cs")}
    if wrong:
        raise ValueError(f"control characters reach the terminal: {wrong}")


def _models(backends: tuple[str, ...], folder: Path) -> Callable[[Case], None]:
    """A function that compiles an ONNX file quickly, and runs it once."""
    import numpy as np
    import onnx

    import collage
    from collage.api import default_registry
    from collage.cli.arrays import fill_inputs
    from collage.compiler.compile import compile_model
    from collage.compiler.task import CompileOptions
    from collage.measure.timing.effort import QUICK
    from collage.measure.worker.process import Workers

    workers = Workers()
    options = CompileOptions(
        db=folder / "measurements.sqlite",
        backends=backends or None,
        effort=QUICK,
        time_limit_s=10.0,
        threads=1,
    )

    def run(case: Case) -> None:
        module = compile_model(Path(case.path), options, default_registry(), lambda _: None, workers)
        arrays = fill_inputs(module.program.model_inputs, {}, np.random.default_rng(case.seed))
        if any(node.op_type in ("Div", "Mod") for node in onnx.load(case.path).graph.node):
            for value in arrays.values():  # division by zero ends the process, in ONNX Runtime as well
                if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
                    value[value == 0] = 1
        module.run(arrays)
        module.save(folder / "made.collage")
        collage.load(folder / "made.collage", verify=True).run(arrays)

    return run
