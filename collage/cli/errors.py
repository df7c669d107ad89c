"""Showing failures as one line on stderr and an exit status, without tracebacks and warnings of libraries."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from collage.cli.console import say
from collage.cli.signals import Stopped, Terminated, ending_on_signals
from collage.core.extras import of_compiler
from collage.core.library_text import library_text
from collage.errors import CollageError

TRACEBACK_VARIABLE = "COLLAGE_TRACEBACK"
_SIGINT = 130


_KEPT = "the measurements made so far are kept, so the next run goes on from here."
_NOTHING_WRITTEN = "no file was written; "


class Interrupted(CollageError):
    """Ctrl-C or another signal has ended the work; the exit status is that of a program which the signal ended."""

    def __init__(self, message: str, exit_code: int = _SIGINT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def measurements_survive(*, writes: bool = False) -> Iterator[None]:
    """Say that the measurements made so far are kept when Ctrl-C or another signal ends the block.

    Where the block ``writes`` a file at its end, say that there is none, too.
    """
    kept = (_NOTHING_WRITTEN if writes else "") + _KEPT
    try:
        yield
    except KeyboardInterrupt as interrupt:
        status = interrupt.exit_code if isinstance(interrupt, Stopped) else _SIGINT
        raise Interrupted(f"interrupted; {kept}", status) from interrupt
    except Terminated as end:
        raise Interrupted(f"{end}; {kept}", end.exit_code) from end


class CollageGroup(click.Group):
    """The top of a command line, which runs a command and shows what it raises as a line and a status."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run a command and exit, as in click, but show errors as one line."""
        extra["standalone_mode"] = False
        # A terminal of another encoding than UTF-8 lacks characters.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        with _quiet_libraries(), ending_on_signals():
            status = self._status(args, *rest, **extra)
            if {"tvm", "onnxruntime"} & {*sys.modules}:
                _end_with(status)
            sys.exit(status)

    def _status(self, args: Sequence[str] | None, *rest: Any, **extra: Any) -> int:
        try:
            status = super().main(args, *rest, **extra)
            sys.stdout.flush()
            return status if isinstance(status, int) else 0
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return error.exit_code
        except click.ClickException as error:
            return self._fail(_one_line(error), error.exit_code)
        except (click.Abort, KeyboardInterrupt, Terminated) as end:
            return self._end(end)
        except CollageError as error:
            return self._fail(str(error), error.exit_code)
        except BrokenPipeError:
            # The reader of our output has ended (`| head`). Python would complain again when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except MemoryError:
            return self._fail("out of memory.", 1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return self._fail(f"{where}{error.strerror or error}.", 1)
        except Exception as error:  # a fault of our own or of a library, which may be anything
            if (behind := _end_behind(error)) is not None:
                return self._end(behind)
            if isinstance(error, ImportError) and (needed := of_compiler(error)):
                return self._fail(needed, 1)
            hint = f"A fault in Collage; `{self.name} --traceback` shows where."
            return self._fail(f"{type(error).__name__}: {library_text(error)}. {hint}", 1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click itself would show Ctrl-C as a blank line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise Interrupted("interrupted.") from interrupt

    def _end(self, end: BaseException) -> int:
        if isinstance(end, Terminated):
            return self._fail(f"{end}.", end.exit_code)
        return self._fail("interrupted.", end.exit_code if isinstance(end, Stopped) else _SIGINT)

    def _fail(self, message: str, status: int) -> int:
        if _traceback_wanted():
            traceback.print_exc()
        text = " ".join(message.split())
        say(f"{self.name}: error: {text}" if status <= 128 else f"{self.name}: {text}", err=True)
        return status


def _end_with(status: int) -> None:
    """Have the process end with this status although threads may be in C++, which Python tears them out of."""
    from collage.native.library import core, core_problem

    sys.stdout.flush()
    if not core_problem():
        core().collage_end_with(status)


def _end_behind(error: BaseException) -> BaseException | None:
    """What a signal raised, where it was turned into an error; None where no signal was behind the error.

    Before Python 3.12 an import does so: what is raised in a ``__set_name__`` becomes a RuntimeError.
    """
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        if isinstance(behind, KeyboardInterrupt | Terminated):
            return behind
        seen.add(id(behind))
        behind = behind.__cause__ or behind.__context__
    return None


def want_traceback() -> None:
    """Show tracebacks from now on, in this process and in those that it starts."""
    os.environ[TRACEBACK_VARIABLE] = "1"


def _traceback_wanted() -> bool:
    return os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0")


def _traceback(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        want_traceback()


TRACEBACK_OPTION = click.option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    callback=_traceback,
    help=f"Show tracebacks and libraries' warnings; {TRACEBACK_VARIABLE}=1 does the same.",
)


def _one_line(error: click.ClickException) -> str:
    text = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        stop = "" if text.endswith((".", "?")) else "."
        return f"{text}{stop} See `{error.ctx.command_path} --help`."
    return text


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Keep messages of libraries off the terminal, and show each of our own warnings as one line."""
    if _traceback_wanted():
        yield
        return
    nobody, ours = logging.NullHandler(), _WarningLines(logging.WARNING)
    root, logger = logging.getLogger(), logging.getLogger("collage")
    root.addHandler(nobody)
    logger.addHandler(ours)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(nobody)
        logger.removeHandler(ours)


class _WarningLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        say(f"collage: {record.levelname.lower()}: {text}", err=True)


class _InfoLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:  # warnings are shown in any case
            say(record.getMessage(), err=True)


@contextmanager
def log_lines(*names: str) -> Iterator[None]:
    """Show the information that these loggers give inside the block, a line each on stderr."""
    handler = _InfoLines()
    loggers = [logging.getLogger(name) for name in names]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.INFO)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.removeHandler(handler)
            each.setLevel(level)
