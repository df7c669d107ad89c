"""The network that a model is a part of: how many bytes of weights it has, in the model's metadata.

They tell whether the cache holds the model's weights from one run to the next (see ``measure/timing/cache_state.py``).
"""

from __future__ import annotations

import onnx

_KEY = "collage.network_bytes"
_MOST_DIGITS = 18


def note_network(model: onnx.ModelProto, weight_bytes: int) -> None:
    """Note in the model that it is a part of a network with so many bytes of weights."""
    model.metadata_props.add(key=_KEY, value=str(weight_bytes))


def network_bytes(model: onnx.ModelProto) -> int:
    """The bytes of weights of the network that the model is a part of, 0 where it names none."""
    named = [each.value for each in model.metadata_props if each.key == _KEY]
    known = bool(named) and named[0].isascii() and named[0].isdigit() and len(named[0]) <= _MOST_DIGITS
    return int(named[0]) if known else 0
