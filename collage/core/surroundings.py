"""What a process is given when Collage is imported, before any other library is.

No library reports to its makers, in this process and in those that it starts. A user without a home has a cache folder.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import cast

_CACHE = "XDG_CACHE_HOME"
_SILENT = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime would report the models that it is given, and keep an id for that
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # this and the next one are for what backends of others bring
    "DO_NOT_TRACK": "1",
}


def prepare() -> None:
    """Set what this process and its children need. A variable that is set is the user's choice, and stays."""
    for name, value in _SILENT.items():
        os.environ.setdefault(name, value)
    # OpenVINO's package reports that it was imported. No variable turns that off, but it does without this module. An
    # import of it raises ImportError from now on, unless the user's program has imported it before.
    sys.modules.setdefault("openvino_telemetry", cast(ModuleType, None))
    if not os.environ.get(_CACHE) and os.path.expanduser("~") == "~":  # TVM cannot be imported then
        with suppress(OSError):
            os.environ[_CACHE] = str(temporary_cache())


def cache_folder() -> Path:
    """Collage's folder among the user's caches, or in ``temporary_cache`` if the home cannot be written.

    Raises OSError or RuntimeError if there is neither.
    """
    import platformdirs

    place = Path(os.path.expanduser("~"), ".cache")
    while not os.path.exists(place):  # unlike Path.exists, it raises nothing
        place = place.parent
    if os.environ.get(_CACHE) or os.access(place, os.W_OK):
        return platformdirs.user_cache_path("collage")
    return temporary_cache() / "collage"


def temporary_cache() -> Path:
    """Make this user's own folder for caches among the temporary files, if it is not there. Raises OSError."""
    import tempfile

    user = os.geteuid()
    path = Path(tempfile.gettempdir()) / f"collage-{user}-cache"
    with suppress(FileExistsError):
        path.mkdir(0o700)
    found = path.lstat()
    if path.is_symlink() or found.st_uid != user or found.st_mode & 0o022:  # another user may write there
        return Path(tempfile.mkdtemp(prefix="collage-cache-"))
    return path
