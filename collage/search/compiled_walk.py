"""The walk of ``dp`` by the compiled library: options and storages as arrays of numbers.

Where the library was not built, ``dp`` walks in Python. Both follow the same states in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from collage.core.deadline import Check
from collage.native.cover_walk import MOST_STORAGES, NEVER, OPTION, PORT, VALUE, Cover, can_walk, walk
from collage.search.covers import Option
from collage.search.storages import StorageRules

_WORD, _WEIGHT = 8, 16
"""Bytes of a word, and of a weight."""


def can_be_walked(options: Sequence[Sequence[Option]], rules: StorageRules) -> bool:
    """Whether the library is there, and its numbers are large enough for the problem."""
    heaviest = max((option.weight for here in options for option in here), default=0)
    storages = max((len(rules.table(value)) for value in rules.values), default=0)
    return can_walk() and heaviest * len(options) < NEVER and storages <= MOST_STORAGES


def walked(
    options: Sequence[Sequence[Option]], max_states: int, rules: StorageRules, check: Check
) -> tuple[list[Option] | None, int, bool]:
    """The options of the cheapest cover, the last one first, the last position reached, and whether it is exact.

    Raises MemoryError, and what ``check`` raises.
    """
    found, reached, exact = walk(_cover(options, rules), max_states, check)
    if found is None:
        return None, reached, exact
    listed = [option for here in options for option in here]
    return [listed[number] for number in found], reached, exact


def _cover(options: Sequence[Sequence[Option]], rules: StorageRules) -> Cover:
    values = rules.values
    number = {value: at for at, value in enumerate(values)}
    words: list[bytes] = []
    ports: list[tuple[int, int]] = []
    rows = []
    at = 0
    for option in (option for here in options for option in here):
        masks = [_mask(option.mask), _mask(option.reaches)]
        reads, writes = option.ports or ((), ())
        counts = [len(each) // _WORD for each in masks]
        rows.append(
            (
                _two_words(option.weight),
                *(at, at + counts[0], len(ports)),
                *counts,
                *(len(reads), len(writes), option.ports is not None, 0),
            )
        )
        words += masks
        at += sum(counts)
        ports += [(number[value], storage) for value, storage in (*reads, *writes)]
    tables = [rules.table(value) for value in values]
    starts = accumulate((len(table) ** 2 for table in tables), initial=0)
    about = [
        (start, *rules.span(value), len(table), rules.is_output(value))
        for value, table, start in zip(values, tables, starts, strict=False)
    ]
    return Cover(
        np.array([0, *accumulate(len(here) for here in options)], np.int64),
        np.array(rows, OPTION),
        _numbers(words),
        np.array(ports, PORT),
        np.array(about, VALUE),
        _numbers(min(cost, NEVER).to_bytes(_WEIGHT, "little") for table in tables for row in table for cost in row),
    )


def _mask(mask: int) -> bytes:
    return mask.to_bytes(-(-mask.bit_length() // (8 * _WORD)) * _WORD, "little")


def _two_words(weight: int) -> tuple[int, int]:
    return weight & (1 << 64) - 1, weight >> 64


def _numbers(words: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """The words, and one more, since numpy makes no array of nothing."""
    return np.frombuffer(b"".join(words) + bytes(_WORD), np.uint64)
