"""The text that a recogniser of characters reads: the most likely character at each place, without repetitions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx

_BLANK = 0


def characters(model: onnx.ModelProto) -> list[str]:
    """The characters by class, as the model's metadata has them; empty where it has none."""
    for prop in model.metadata_props:
        if prop.key == "character":
            return ["", *prop.value.splitlines(), " "]
    return []


def read(scores: npt.NDArray[np.float32], known: list[str]) -> str:
    """The text of one line, whose scores are (places, classes). An unknown class is its number in brackets."""
    best = scores.argmax(-1)
    kept = [int(c) for at, c in enumerate(best) if c != _BLANK and (at == 0 or c != best[at - 1])]
    return "".join(known[c] if c < len(known) else f"[{c}]" for c in kept)
