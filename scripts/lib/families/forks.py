"""Work in forks of a process that has imported what takes long. A fork may crash or hang; the process goes on.

This is used by both interpreters, and imports nothing of Collage.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

Work = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def serve(first: Callable[[], Mapping[str, Any]], work: Work) -> int:
    """Answer requests, which are lines of JSON on the standard input, until there are no more.

    The first answer is what ``first`` returns here; each of the others is made by ``work`` in a fork, which has
    ``limit_s`` seconds of the request. Where the fork has not made one, the answer has ``ended``, which says how.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries print, too
    warnings.simplefilter("ignore")
    _write(answers, first())
    for line in sys.stdin:
        _write(answers, _in_a_fork(work, json.loads(line)))
    return 0


def _in_a_fork(work: Work, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a fork of this process answers to the request, or how it ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reader)
            signal.setitimer(signal.ITIMER_REAL, request["limit_s"])  # which ends the process
            _write(writer, work(request))
            status = 0
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.readline()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if not code and answer:
        found: Mapping[str, Any] = json.loads(answer)
        return found
    if code == -signal.SIGALRM:
        return {"ended": f"it took more than {request['limit_s']:g} s"}
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return {"ended": f"its process ended ({how})"}


def _write(descriptor: int, line: Mapping[str, Any]) -> None:
    """Write a line of JSON, all of it."""
    data = (json.dumps(line) + "\n").encode()
    while data:
        data = data[os.write(descriptor, data) :]
