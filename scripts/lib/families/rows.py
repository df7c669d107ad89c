"""What became of each export, as lines, as a summary and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

RIGHT, WRONG, REFUSED, NO_EXPORT = "right", "wrong", "refused", "no export"

_WORDS = {
    RIGHT: "accepted",
    WRONG: "WRONG: ",
    REFUSED: "refused: ",
    NO_EXPORT: "cannot be exported: ",
}


@dataclass(frozen=True)
class Row:
    """One export. ``verdict`` is RIGHT, WRONG, REFUSED or NO_EXPORT, and ``about`` says why.

    ``error`` is the largest one of a logit, where logits were compared. WRONG is a decoder that was accepted and gives
    wrong answers, and one that ends its process or raises what is no refusal.
    """

    family: str
    exporter: str
    verdict: str
    about: str = ""
    error: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        error = "" if self.error is None else f", largest error {self.error:.1e}"
        note = f" ({self.about})" if self.verdict == RIGHT and self.about else self.about
        text = f"{_WORDS[self.verdict]}{note}{error}"
        return f"{self.family:22} {self.exporter:9} {self.seconds:5.1f} s  {text}"


def summary(rows: Sequence[Row]) -> str:
    """The closing lines: the numbers of exports, and which are wrong and refused."""
    count = Counter(each.verdict for each in rows)
    exports = len(rows) - count[NO_EXPORT]
    accepted = count[RIGHT] + count[WRONG]
    lines = [
        f"{exports} exports of {len({each.family for each in rows if each.verdict != NO_EXPORT})} families: "
        f"{accepted} accepted, of which {count[RIGHT]} are right; {count[REFUSED]} refused"
    ]
    for verdict, words in ((WRONG, "wrong"), (REFUSED, "refused"), (NO_EXPORT, "cannot be exported")):
        if count[verdict]:
            names = ", ".join(f"{each.family} ({each.exporter})" for each in rows if each.verdict == verdict)
            lines.append(f"{words}: {names}")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], versions: Mapping[str, str]) -> Mapping[str, Any]:
    """The rows, the numbers of each verdict, and the versions of the packages, for JSON."""
    count = Counter(each.verdict for each in rows)
    return {
        "versions": dict(versions),
        "counts": {verdict: count[verdict] for verdict in (RIGHT, WRONG, REFUSED, NO_EXPORT)},
        "exports": [asdict(each) for each in rows],
    }
