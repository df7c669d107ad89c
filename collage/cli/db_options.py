"""What the commands of ``collage db`` share: opening the file, and telling what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from collage.cli.console import say
from collage.errors import DatabaseError

if TYPE_CHECKING:
    from collage.measure_db.database import Database
    from collage.measure_db.exchange import Exchange


def existing(path: Path | None) -> Database:
    """The database at the path, by default the user's. Raises DatabaseError where there is none."""
    from collage.measure_db.database import Database
    from collage.measure_db.database_file import default_path

    path = path or default_path()
    if not path.exists():  # opening would create it
        raise DatabaseError(f"there is no measurement database at {path} yet: `collage compile` makes it.")
    return Database(path)


def this_machine() -> str:
    """What measurements of this machine have as their hardware, but for a CPU quota that more threads exceed."""
    from collage.kernel.target import host

    return host().measured_on


def installed_versions() -> dict[str, str]:
    """The version of each backend that can be used here, as keys of measurements have it."""
    from collage.api import default_registry
    from collage.backends.base import BUILT_IN
    from collage.backends.source import keyed_version

    registry = default_registry()
    found = {**registry.availability(), **{name: registry[name].available() for name in BUILT_IN}}
    return {name: keyed_version(registry[name], here.version) for name, here in found.items() if here}


def tell(found: Exchange) -> None:
    """Print what a merge took, and what not."""
    say(
        f"{found.taken} taken, {found.same} already there, {found.less_certain} less certain than what is there"
    )
    say_reasons(found.refused, "not taken")


def say_reasons(reasons: Mapping[str, int], what: str) -> None:
    """Print how many rows there were for each reason, most first."""
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        say(f"{count} {what}: {reason}")


def date_of(created: float) -> str:
    """A time as of ``time.time()`` as a local date and time."""
    return time.strftime(
        "%Y-%m-%d %H:%M", time.localtime(min(created, 32503680000.0))
    )  # a year of four digits
