"""The process of a contender: it reads messages as lines of JSON, and answers each with one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from scripts.lib.serving.contender import CONTENDERS, Contender, MissingError, Setup
from scripts.lib.serving.trace import from_message


def main() -> None:
    """Answer messages until there are none. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contender: Any = None
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if message["do"] == "open":
                contender = _open(message)
                answer: Mapping[str, Any] = {"facts": contender.facts()}
            elif message["do"] == "serve":
                answer = _serve(contender, message)
            else:
                answer = getattr(contender, message["do"])(message)
        except MissingError as error:
            answer = {"missing": str(error)}
        except Exception as error:  # the contender's code is not ours
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _open(message: Mapping[str, Any]) -> Contender:
    name, given = message["name"], message["setup"]
    module = import_module(f"scripts.lib.serving.contenders.{CONTENDERS[name]}")
    setup = Setup(**{**given, "folder": Path(given["folder"]), "module": Path(given["module"])})
    found: Contender = module.open_contender(name, setup)
    return found


def _serve(contender: Contender, message: Mapping[str, Any]) -> Mapping[str, Any]:
    arrivals = from_message(message["arrivals"])
    tokens: list[list[int]] = [[] for _ in arrivals]
    times: list[list[float]] = [[] for _ in arrivals]

    def note(number: int, token: int) -> None:
        tokens[number].append(token)
        times[number].append(time.monotonic())

    start = time.monotonic()
    contender.serve(arrivals, note)
    return {"tokens": tokens, "token_s": [[each - start for each in row] for row in times]}


if __name__ == "__main__":
    main()
