"""What the values of a loop over experts are: masks of choices, rows that chose an expert, and what is made of these.

Axes have names: "token", "slot" (a token chooses an expert in each of its slots), "expert", "row" (of those that chose
one expert), "pair" (a row's token and slot), "feature", and "one" for an axis of one element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

TOKEN, SLOT, EXPERT, ROW, PAIR, FEATURE, ONE = "token", "slot", "expert", "row", "pair", "feature", "one"

Axes: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class ExpertChoice:
    """The experts that tokens choose, by number."""

    axes: Axes


@dataclass(frozen=True)
class Mask:
    """Whether a token chooses an expert in a slot; all experts where ``expert`` is None, or only this one."""

    axes: Axes
    expert: int | None = None


@dataclass(frozen=True)
class Hits:
    """Which experts any token has chosen, or their numbers, or some of these."""


@dataclass(frozen=True)
class Places:
    """The tokens and slots that chose an expert, in the order ``parts``, along the axis "pair"."""

    expert: int
    parts: tuple[str, ...]
    axes: Axes


@dataclass(frozen=True)
class Column:
    """A number for each row: its token, its slot, or its place among all pairs of these.

    ``slots`` is the factor of a token's number, ``with_slot`` tells whether the slot is added, and ``token`` whether
    there is a token at all.
    """

    expert: int
    axes: Axes
    token: bool
    slots: int = 1
    with_slot: bool = False


@dataclass(frozen=True)
class Lengths:
    """Extents of such values."""


@dataclass(frozen=True)
class Operand:
    """An operand of a step.

    ``kind`` is "step" for what an earlier step makes, whose number is ``step``. Others are the value ``name`` of the
    graph: "tokens" for rows of a value that tokens have, "gates" for the rows' own factors, "weight" for a parameter
    of the expert, transposed where ``turned``, "stack" for the parameters of all experts in one constant, and "same"
    for a number that all experts have in common. A "weight" with a ``number`` is the part of a constant that is at that
    place of its first axis. "integer" is the ``number`` itself, and "none" an operand that is left out.
    """

    kind: str
    name: str = ""
    step: int = -1
    turned: bool = False
    number: int | None = None


@dataclass(frozen=True)
class ExpertStep:
    """An operator on the rows of one expert, with its attributes."""

    operator: str
    attributes: bytes
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class ExpertRows:
    """What the rows that chose an expert have; ``made`` says how."""

    expert: int
    axes: Axes
    made: Operand


@dataclass(frozen=True)
class ExpertPart:
    """What one expert adds to the tokens, zeros for those that have not chosen it."""

    expert: int
    made: Operand


@dataclass(frozen=True)
class Total:
    """The parts of some experts, added to ``base``, or to zeros where that is ""."""

    base: str
    parts: tuple[ExpertPart, ...]


Value: TypeAlias = ExpertChoice | Mask | Hits | Places | Column | Lengths | ExpertRows | ExpertPart | Total


@dataclass(frozen=True)
class Mixture:
    """A mixture: ``total`` is the value that it makes [tokens, width], of the ``choice`` [tokens, slots].

    ``steps`` has the steps of each expert, from the first expert on, or those of all where their parameters are stacks.
    """

    choice: str
    slots: int
    made: str
    total: Total
    steps: tuple[tuple[ExpertStep, ...], ...]
