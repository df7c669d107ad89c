"""Backend patterns (§2.3): the pattern language, pattern rules, the generator and the registry."""

from collage.patterns.explicit import BackendPattern
from collage.patterns.language import is_const, is_op, is_tuple, wildcard
from collage.patterns.match import Found, Match, MatchSource, RejectedMatch
from collage.patterns.registry import PatternRegistry
from collage.patterns.rules import BasePatternRule, check_path

__all__ = [
    "BackendPattern",
    "BasePatternRule",
    "Found",
    "Match",
    "MatchSource",
    "PatternRegistry",
    "RejectedMatch",
    "check_path",
    "is_const",
    "is_op",
    "is_tuple",
    "wildcard",
]
