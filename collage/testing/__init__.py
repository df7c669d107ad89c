"""A kit for authors of backends: it checks a backend, or one kernel, against its contract.

``check_kernel(backend, model)`` is for a test of one kernel, and ``check_backend(backend)`` tries a backend on a
catalogue of models. Both return findings, each with a script that shows it again. ``collage check-backend`` is the
same for the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.testing.check import check_backend, check_kernel
    from collage.testing.finding import CHECKS, Finding, Findings, Tally, Where

_HOMES = {
    "CHECKS": "collage.testing.finding",
    "Finding": "collage.testing.finding",
    "Findings": "collage.testing.finding",
    "Tally": "collage.testing.finding",
    "Where": "collage.testing.finding",
    "check_backend": "collage.testing.check",
    "check_kernel": "collage.testing.check",
}

__all__ = ["CHECKS", "Finding", "Findings", "Tally", "Where", "check_backend", "check_kernel"]


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'collage.testing' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
