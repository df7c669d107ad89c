"""A process that compiles exported decoders as `collage compile-decoder --quick` does, and compares their answers.

Started by ``scripts.lib.families.processes``, never by hand. A request has ``model``, ``max_length``, ``database`` and
``scratch``, a folder. Its answer has ``verdict``, ``about`` and ``error``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage.api import default_registry
from collage.core.lean_imports import lean_imports
from collage.core.library_text import raised
from collage.core.progress import Progress
from collage.errors import CollageError, ModelError

with lean_imports():
    from collage.serve.decoder.build import compile_decoder
    from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.file import load_decoder, save_decoder
from collage.serve.decoder.normal_form import in_normal_form
from collage.serve.decoder.original import OriginalDecoder
from collage.serve.decoder.runner import DecoderRunner
from scripts.lib.families.compare import compare
from scripts.lib.families.forks import serve
from scripts.lib.families.rows import REFUSED, RIGHT, WRONG

BUCKETS = (1, 16)
"""The numbers of tokens that decoders are compiled for."""
_BLOCKS = 32
"""The blocks of the cache, of 32 tokens each: enough for all prompts with their answers."""


def main() -> int:
    """Answer requests until there are no more."""
    return serve(dict, _check)


def _check(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The verdict on one decoder, what is to be said about it, and the largest error of a logit."""
    model, scratch = Path(request["model"]), Path(request["scratch"])
    registry = default_registry()
    options = DecoderOptions(
        BUCKETS, max_length=request["max_length"], quick=True, db=Path(request["database"])
    )
    try:
        compiled = compile_decoder(model, options, registry, _nothing)
    except CollageError as error:
        return _answer(REFUSED, str(error))
    except Exception as error:  # a refusal is a CollageError; whatever else comes is a fault
        return _answer(WRONG, f"the compile failed: {raised(error)}")
    file = scratch / "decoder.collage"
    try:
        save_decoder(compiled, file)
        runner = DecoderRunner(load_decoder(file, registry), registry, _BLOCKS)
        original, notes = _original(model, compiled.threads)
        found = compare(runner, original)
    except Exception as error:
        return _answer(WRONG, f"serving failed: {raised(error)}")
    finally:
        file.unlink(missing_ok=True)
    if request["max_length"]:
        notes.append(f"with --max-length {request['max_length']}")
    if found.ties:
        notes.append(f"{found.ties} tokens at a tie")
    return _answer(WRONG if found.problem else RIGHT, found.problem or "; ".join(notes), found.error)


def _original(model: Path, threads: int) -> tuple[OriginalDecoder, list[str]]:
    """The exported file in ONNX Runtime, or its float32 form where ONNX Runtime cannot load it, with a note."""
    try:
        return OriginalDecoder(model, threads), []
    except ModelError:
        return OriginalDecoder(in_normal_form(model), threads), ["ONNX Runtime has it widened to float32"]


def _nothing(_: Progress) -> None:
    """Show no progress."""


def _answer(verdict: str, about: str, error: float | None = None) -> Mapping[str, Any]:
    finite = error if error is None or math.isfinite(error) else None
    return {"verdict": verdict, "about": about, "error": finite}


if __name__ == "__main__":
    sys.exit(main())
