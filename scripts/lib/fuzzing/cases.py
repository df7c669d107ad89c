"""Changed files by number. The same number and seed give the same file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from scripts.lib.fuzzing.change_model import change_model, originals
from scripts.lib.fuzzing.change_module import change_module
from scripts.lib.fuzzing.corpus import write_corpus
from scripts.lib.fuzzing.pool import Changed


def changed_modules(folder: Path, count: int, first: int = 0, seed: int = 0) -> Iterator[Changed]:
    """Makes changed module files. The good ones are written to ``folder``."""
    if count:
        good = [(path.stem, path.read_bytes()) for path in write_corpus(folder)]
        for number in range(first, first + count):
            rng = random.Random(f"module {seed} {number}")
            name, data = good[number % len(good)]
            changed, what = change_module(data, rng)
            yield Changed(number, f"{name}: {what}", changed, ".collage")


def changed_models(count: int, first: int = 0, seed: int = 0) -> Iterator[Changed]:
    """Makes changed ONNX files."""
    if count:
        good = originals()
        for number in range(first, first + count):
            rng = random.Random(f"model {seed} {number}")
            name, data = good[rng.randrange(len(good))]
            changed, what = change_model(data, rng)
            yield Changed(number, f"{name}: {what}", changed, ".onnx")
