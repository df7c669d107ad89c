"""Networks with real weights as subjects of a study: files of their own, real samples and other real inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from scripts.lib.realmodels.cases import UnknownModelError
from scripts.lib.realmodels.drawn import DRAWS, SAMPLES, spread
from scripts.lib.realmodels.files import networks
from scripts.lib.studies.each import say
from scripts.lib.studies.precision import Subject

_SAMPLES = 40
"""Of sound, that is 20 s: a dozen windows may be without silence."""


def real_subjects(paths: Sequence[Path], only: str, folder: Path, draws: int) -> dict[str, Subject]:
    """The networks by name; ``folder`` gets their files. Those without known real inputs are left out.

    Raises CollageError where there is none.
    """
    found: dict[str, Subject] = {}
    for each in networks(paths, [only] if only else []):
        model = onnx.load_model_from_string(each.data)
        try:
            case, samples = spread(model, _SAMPLES, SAMPLES)
            _, others = spread(model, max(draws, 1), DRAWS)
        except UnknownModelError as error:
            say(f"{each.name} is left out: {error}")
            continue
        file = folder / f"{each.name.replace('/', '-')}.onnx"
        file.write_bytes(each.data)
        found[each.name] = Subject(file, case.shapes, samples, others)
    return found
