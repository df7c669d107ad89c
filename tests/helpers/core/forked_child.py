"""A child process for tests of fork servers: it does what it is told."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import tempfile

from collage.core.child_process import parent_id, read_message, take_over_pipes, write_message

IMPORTED_BY = os.getpid()


def main() -> None:
    source, sink = take_over_pipes()
    try:
        while True:
            verb, *arguments = read_message(source)
            if verb == "exit":
                sys.exit(arguments[0])
            elif verb == "raise":
                raise RuntimeError(arguments[0])
            elif verb == "abort":
                os.abort()
            elif verb == "segfault":
                ctypes.string_at(0)
            elif verb == "print":
                print(arguments[0], flush=True)
                write_message(sink, None)
            else:
                write_message(
                    sink,
                    {
                        "imported_by": IMPORTED_BY,
                        "me": os.getpid(),
                        "parent": os.getppid(),
                        "told_parent": parent_id(),
                        "session": os.getsid(0),
                        "environment": dict(os.environ),
                        "path": list(sys.path),
                        "folder": os.getcwd(),
                        "cpus": os.sched_getaffinity(0),
                        "temporary": tempfile.gettempdir(),
                        "largest_file": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
                    },
                )
    except EOFError:
        os._exit(0)
