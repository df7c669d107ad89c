"""JSON for results in files, as the command line prints it: NaN and infinity, which JSON does not have, are null."""

from __future__ import annotations

import json
from typing import Any

from collage.cli.console import finite


def json_text(value: Any, indent: int | None = None) -> str:
    """The value as JSON that every reader takes: keys are texts, and numbers that are not finite are null."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)
