"""In-flight samples of a stage: Table 3.2 and Algorithm 3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Config:
    """The schedule of a stage: micro-batches of ``b`` samples, ``k`` forward passes by turns with ``k`` backward ones,
    and ``in_flight`` samples at most between their two passes.
    """

    b: int
    k: int
    in_flight: int


Following: TypeAlias = "Iterable[Config]"


def compute_in_flight(b: int, k: int, after: Config) -> int:
    """The in-flight samples of a stage of b and k before the stage ``after``, by Table 3.2.

    The table's number is rounded up to a multiple of ``b``: passes are of whole micro-batches.
    """
    larger, mine, its = max(b, after.b), k * b, after.k * after.b
    if mine < its:
        if mine < after.b:
            more = after.b
        else:
            more = larger if mine == larger else 2 * larger
    elif mine == its:
        more = its if its == larger else 2 * larger
    elif its < b:
        more = mine - its + b
    else:
        more = mine if its == larger else mine - its + 2 * larger
    return -(-(after.in_flight + more) // b) * b


def in_flight(b: int, k: int, following: Following, mini_batch: int) -> int:
    """The in-flight samples of a stage before all ``following`` ones; with none, of a last stage. Not above a batch."""
    return min(max((compute_in_flight(b, k, each) for each in following), default=k * b), mini_batch)


def schedule_stage(b: int, following: Sequence[Config], mini_batch: int, ks: Sequence[int] = (1,)) -> Config:
    """Algorithm 3: the k of ``ks`` with the fewest in-flight samples.

    Of several such the largest one is taken with which k passes are not larger than a pass of a following stage, as
    that helps the stages before (Fig. 3.5).
    """
    widest = max((each.b for each in following), default=b)
    counts = {k: in_flight(b, k, following, mini_batch) for k in ks if k * b <= mini_batch}
    least = min(counts.values())
    ties = [k for k, count in counts.items() if count == least]
    k = max((k for k in ties if k * b <= widest), default=min(ties))
    return Config(b, k, least)
