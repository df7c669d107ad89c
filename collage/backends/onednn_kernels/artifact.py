"""A plan and its packed weights as bytes, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.backends.onednn_kernels import description, handles, operations, plan, post_ops
from collage.errors import CollageError
from collage.runtime import frames
from collage.runtime.frames import frame, unframe

_KIND = "onednn"
_CLASSES = {
    each.__name__: each
    for module in (description, operations, plan, post_ops, handles)
    for each in vars(module).values()
    if isinstance(each, type) and dataclasses.is_dataclass(each)
}


@dataclass(frozen=True)
class Artifact:
    """``forms`` tells for each constant how it was packed, or None where the plan itself says it.

    ``version`` and ``isa`` are those of the oneDNN that packed them.
    """

    plan: plan.Plan
    threads: int
    version: str
    isa: int
    forms: tuple[handles.Form | None, ...]
    weights: tuple[npt.NDArray[np.uint8], ...]


def to_bytes(artifact: Artifact) -> bytes:
    """The artifact, its weights at multiples of 64 bytes."""
    head = {
        "plan": _encode(artifact.plan),
        "threads": artifact.threads,
        "version": artifact.version,
        "isa": artifact.isa,
        "forms": _encode(artifact.forms),
    }
    return frame(_KIND, head, [each.data for each in artifact.weights])


def from_artifact(artifact: frames.Artifact) -> Artifact:
    """The inverse; weights lie at multiples of 64 bytes: copies, or mapped and read-only.

    Raises CollageError for what is none.
    """
    try:
        framed = unframe(_KIND, artifact)
        header = framed.header
        return Artifact(
            _decode(header["plan"]),
            header["threads"],
            header["version"],
            header["isa"],
            _decode(header["forms"]),
            tuple(framed.array(i) for i in range(len(framed.arrays))),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CollageError(f"this is no oneDNN kernel: {error}") from error


def _encode(value: Any) -> Any:
    """Dataclasses as lists that begin with their name; tuples as lists that begin with 0."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (getattr(value, each.name) for each in dataclasses.fields(value))
        return [type(value).__name__, *(_encode(each) for each in fields)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [0, *(_encode(each) for each in value)]
    return value


def _decode(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    head, *rest = value
    decoded = [_decode(each) for each in rest]
    return tuple(decoded) if head == 0 else _CLASSES[head](*decoded)
