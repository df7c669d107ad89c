"""JSON files of models."""

from __future__ import annotations

import json
from typing import Any

from collage.errors import ModelError


def read_json(data: bytes, what: str) -> Any:
    """The value in JSON text. Raises ModelError, which ``what`` names the file in."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what} is no JSON, or is cut short: {error}. Save the model again.") from error
