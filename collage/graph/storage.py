"""Storages: a value is stored on a device, in a format. The graph has logical shapes, kernels have storages.

A format is a value (see ``formats.py``), and a backend may add its own. Neither this file nor the search has a list of
all formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from collage.graph.dataflow import Array, TensorType
from collage.graph.formats import Blocked, ChannelsLast, Narrow, Plain, Stepped, StorageFormat, stepped

HOST = "cpu"
"""The device that means the process's own memory. A model's inputs and outputs are there, in the plain format."""

CUDA = "cuda"
"""The device that means the memory of the NVIDIA GPU which CUDA takes by default."""

BLOCK = 16
"""The number of channels in a block of the format ``blocked``, which fill one AVX-512 register of float32."""

_LOGICAL = Plain("plain")
_DEVICE = re.compile("[a-z0-9]+([:._-][a-z0-9]+)*")


@dataclass(frozen=True)
class Storage:
    """The name of a device, and a storage format; by default the host and the plain format.

    As text it is the format's name on the host, and ``device:format`` on any other device. Databases, module files and
    reports use this text, and storages are sorted by it. Raises ValueError for an invalid device name.
    """

    device: str = HOST
    format: StorageFormat = _LOGICAL

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise ValueError(
                f"no device is called {self.device!r}: a name has small letters, digits and the characters :._-"
            )

    def __str__(self) -> str:
        name = self.format.name
        return name if self.device == HOST else f"{self.device}:{name}"

    def __repr__(self) -> str:
        return f"<storage {self}>"

    def __hash__(self) -> int:
        return hash((self.device, self.format.name))  # the search hashes many

    def __lt__(self, other: Storage) -> bool:
        return str(self) < str(other)


PLAIN = Storage()
CHANNELS_LAST = Storage(format=ChannelsLast("channels-last"))
BLOCKED = Storage(format=Blocked("blocked", BLOCK))

STORAGES = (PLAIN, CHANNELS_LAST, BLOCKED)
"""The built-in storages of values as they are."""

BF16 = "bf16"
"""The precision of bfloat16 factors, exact products and float32 sums."""

TF32 = "tf32"
"""The precision of GPUs' tensor cores for float32: factors of 11 significant bits, and float32 sums. Values are stored
as float32."""

FP16 = "fp16"
"""The precision of float16 factors, exact products and float32 sums. Numbers from 65520 on become infinite."""

INT8 = "int8"
"""The precision of factors of 8 bits, with a scale for each output channel of the weights, and for each row of the data
where that is rounded, too. Sums are exact or float32. No value is stored so."""

STORED_INT8 = "stored_int8"
"""The precision of kernels in older modules that read or write values as integers of 8 bits (``Stepped``)."""

PLAIN_BF16, CHANNELS_LAST_BF16, BLOCKED_BF16 = BF16_STORAGES = tuple(
    Storage(format=Narrow(f"{each.format.name}-{BF16}", each.format, "bfloat16", BF16)) for each in STORAGES
)
"""The built-in storages of float32 values that are rounded to bfloat16."""

PLAIN_FP16, CHANNELS_LAST_FP16 = FP16_STORAGES = tuple(
    Storage(format=Narrow(f"{each.format.name}-{FP16}", each.format, "float16", FP16))
    for each in (PLAIN, CHANNELS_LAST)
)
"""The built-in storages of float32 values that are rounded to float16, which only kernels on GPUs have."""

FORMATS = tuple(each.format for each in (*STORAGES, *BF16_STORAGES, *FP16_STORAGES))
"""The built-in storage formats."""


_STEPS = re.compile("(plain|channels-last)-(u8|s8)-([0-9a-f]{8})")


def stored_in_steps(wide: Storage, signed: bool, scale: float) -> Storage:
    """The storage of float32 values as integers of 8 bits in the order of a built-in one, with steps of ``scale``.

    Raises ValueError for a scale that is no positive number with an inverse.
    """
    return Storage(wide.device, stepped(wide.format, "int8" if signed else "uint8", scale, STORED_INT8))


def steps_of(storage: Storage) -> Stepped | None:
    """The format of a storage whose values are integers of 8 bits with a scale; None for any other one."""
    return storage.format if isinstance(storage.format, Stepped) else None


def parse_storage(text: str, formats: Iterable[StorageFormat]) -> Storage:
    """The storage with that text, in one of the ``formats`` or in steps of 8 bits.

    Raises ValueError that names an unknown format.
    """
    device, _, name = text.rpartition(":")
    for each in formats:
        if each.name == name:
            return Storage(device or HOST, each)
    if found := _STEPS.fullmatch(name):
        order, kind, bits = found.groups()
        wide = {each.format.name: each for each in STORAGES}[order]
        scale = np.array(int(bits, 16), np.uint32).view(np.float32)
        return replace(stored_in_steps(wide, kind == "s8", float(scale)), device=device or HOST)
    raise ValueError(f"no storage format is called {name!r}")


def is_narrow(storage: Storage) -> bool:
    """Whether values are rounded to fewer bits there."""
    return isinstance(storage.format, Narrow)


def widened(storage: Storage) -> Storage:
    """The storage with the same order of elements that rounds nothing."""
    found = storage.format
    return Storage(storage.device, found.wide) if isinstance(found, Narrow) else storage


def narrowed(storage: Storage, precision: str) -> Storage:
    """The built-in storage of a reduced precision with the same order of elements; ``storage`` itself for "".

    It is on the same device. Raises ValueError if there is none.
    """
    if not precision:
        return storage
    for each in FORMATS:
        if isinstance(each, Narrow) and each.wide == storage.format and each.precision == precision:
            return Storage(storage.device, each)
    raise ValueError(f"nothing is stored in {storage} layout and in the precision {precision!r}")


def stored_type(kind: TensorType, storage: Storage) -> TensorType:
    """The dense type that a value of logical type ``kind`` has in the memory of a storage.

    Raises ValueError when the format cannot store the value.
    """
    if problem := storage.format.problem(kind):
        raise ValueError(f"no {storage} layout for {kind}: {problem}")
    return storage.format.stored_type(kind)


def to_layout(array: Array, storage: Storage) -> Array:
    """Copy a plain array into a C-contiguous one in the storage's format, on the host; a plain one is not copied."""
    return storage.format.store(array)


def from_layout(stored: Array, storage: Storage, kind: TensorType) -> Array:
    """The plain array of logical type ``kind`` that ``stored`` holds; the inverse of ``to_layout``."""
    return storage.format.restore(stored, kind)
