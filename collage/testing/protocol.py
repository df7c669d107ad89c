"""The messages between the kit and its process, and their replies. A ``child_process.Failure`` may answer any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collage.testing.finding import Where


@dataclass(frozen=True)
class Begin:
    """The first message: the pickled backend, and the threads that kernels may use. Reply: Begun."""

    folder: str
    backend: bytes
    threads: int


@dataclass(frozen=True)
class Seen:
    """What a step has found: pairs of a check's name and a sentence."""

    found: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Begun(Seen):
    """Besides what was found, the reason why the backend is not available, or ""."""

    missing: str = ""


@dataclass(frozen=True)
class Open:
    """Import a model, compute its reference values, and find what the backend takes. Reply: Opened.

    The ``values`` are in folders whose paths begin so; they are computed once.
    """

    name: str
    model: bytes
    values: str


@dataclass(frozen=True)
class Claim:
    """A kernel that the backend says it has: what it claims, and by which pattern.

    A ``large`` one has outputs that no loop gets through in a few steps.
    """

    where: Where
    pattern: str
    large: bool


@dataclass(frozen=True)
class Opened(Seen):
    """The kernels of a model. ``why`` are the reasons why operators are not taken, by operator, and ``problem`` the
    reason why the model cannot be tried."""

    claims: tuple[Claim, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Try:
    """Build, load and check the claim of that number of the open model. Reply: Tried."""

    number: int


@dataclass(frozen=True)
class Tried(Seen):
    """What came of a claim: its ``artifact`` if it is right, or the reason why it is ``refused``."""

    artifact: bytes | None = None
    refused: str = ""


@dataclass(frozen=True)
class TryFurther:
    """Look for state, leaks and disturbances between threads in the kernel that was tried last. Reply: Seen."""


@dataclass(frozen=True)
class Reload:
    """Load an artifact that another process has made, for the claim of that number. Reply: Seen."""

    number: int
    artifact: bytes
