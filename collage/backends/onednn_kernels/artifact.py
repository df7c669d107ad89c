"""A plan and its weights as bytes, and back: JSON, then the packed weights."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collage.backends.onednn_kernels import description, handles, operations, plan, post_ops
from collage.errors import CollageError
from collage.runtime.buffers import ALIGNMENT

_MAGIC = b"odnn"
_HEAD = struct.Struct("<4sI")
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
    weights: tuple[bytes | memoryview, ...]


def to_bytes(artifact: Artifact) -> bytes:
    """The artifact, its weights at multiples of 64 bytes."""
    header = json.dumps(
        {
            "plan": _encode(artifact.plan),
            "threads": artifact.threads,
            "version": artifact.version,
            "isa": artifact.isa,
            "forms": _encode(artifact.forms),
            "sizes": [len(each) for each in artifact.weights],
        },
        separators=(",", ":"),
    ).encode()
    parts: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, len(header)), header]
    at = _HEAD.size + len(header)
    for each in artifact.weights:
        parts += [bytes(-at % ALIGNMENT), each]
        at += -at % ALIGNMENT + len(each)
    return b"".join(parts)


def from_bytes(data: bytes) -> Artifact:
    """The artifact; weights are views of ``data``. Raises CollageError for what is none."""
    try:
        magic, length = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("it does not begin like one")
        header = json.loads(data[_HEAD.size : _HEAD.size + length])
        at = _HEAD.size + length
        weights = []
        for size in header["sizes"]:
            at += -at % ALIGNMENT
            weights.append(memoryview(data)[at : at + size])
            at += size
        if at > len(data):
            raise ValueError("it is cut short")
        return Artifact(
            _decode(header["plan"]),
            header["threads"],
            header["version"],
            header["isa"],
            _decode(header["forms"]),
            tuple(weights),
        )
    except (ValueError, KeyError, TypeError, struct.error) as error:
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
