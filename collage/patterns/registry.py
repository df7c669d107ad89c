"""The registry of patterns and rules that were added to a backend by other code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collage.errors import RegistrationError
from collage.patterns.explicit import BackendPattern, Check
from collage.patterns.language import check_arguments
from collage.patterns.match import MatchSource
from collage.patterns.rules import BasePatternRule


@dataclass
class PatternRegistry:
    """Patterns by backend name. Names are compared without case, so that the paper's ``cuDNN`` is ``cudnn``.

    Patterns can be added before their backend is registered.
    """

    _sources: dict[str, list[MatchSource]] = field(default_factory=dict)

    def add_pattern(self, backend: str, pattern: Any, name: str | None = None, check: Check | None = None) -> None:
        """Add an explicit pattern (Listing 1, method 1).

        Raises RegistrationError for what is no pattern, and for operators with more arguments than they have.
        """
        if not hasattr(pattern, "extract_matched_expr"):
            raise RegistrationError(
                f"a pattern for backend {backend!r} must come from the pattern language "
                f"(is_op, wildcard, ...), got {type(pattern).__name__}."
            )
        check_arguments(pattern)
        self._add(backend, BackendPattern(pattern, name or f"pattern {len(self.sources(backend)) + 1}", check))

    def add_rule(self, backend: str, rule: MatchSource) -> None:
        """Add a pattern rule (Listing 1, method 2), or anything with a ``find`` like a rule's.

        Raises RegistrationError for a class instead of an instance and for what has no ``find``.
        """
        if isinstance(rule, type):
            raise RegistrationError(f"give an instance of the rule for backend {backend!r}: {rule.__name__}().")
        if not isinstance(rule, BasePatternRule) and not callable(getattr(rule, "find", None)):
            raise RegistrationError(
                f"a pattern rule for backend {backend!r} must derive from BasePatternRule, got {type(rule).__name__}."
            )
        self._add(backend, rule)

    def sources(self, backend: str) -> tuple[MatchSource, ...]:
        """The patterns and rules that were added for a backend."""
        return tuple(self._sources.get(backend.lower(), ()))

    @property
    def backends(self) -> tuple[str, ...]:
        """The names, in lower case, of the backends that have patterns or rules here."""
        return tuple(self._sources)

    def copy(self) -> PatternRegistry:
        """An independent copy."""
        return PatternRegistry({name: list(sources) for name, sources in self._sources.items()})

    def _add(self, backend: str, source: MatchSource) -> None:
        self._sources.setdefault(backend.lower(), []).append(source)
