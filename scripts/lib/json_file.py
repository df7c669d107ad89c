"""JSON files that are whole at any moment; NaN and infinity, which JSON does not have, are null."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from collage.cli.console import finite


def write_json(path: Path, value: Any) -> None:
    """Write a file beside the path, and rename it, so that nobody finds half of it."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(json.dumps(finite(value), indent=1, allow_nan=False) + "\n")
    os.replace(scratch, path)
