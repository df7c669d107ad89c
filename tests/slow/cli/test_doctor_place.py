"""``collage doctor`` where the database has no place, or one that this user may not enter: all checks are made."""

from __future__ import annotations

import json
import pwd
from pathlib import Path

import pytest

from tests.helpers.cli.helpers import collage


def checks(*arguments: str | Path) -> dict[str, dict[str, str]]:
    """The checks by name; the command must say that something is wrong, and nothing on stderr."""
    result = collage("doctor", "--json", *arguments)
    assert result.exit_code == 1 and not result.stderr, result.output
    return {each["name"]: each for each in json.loads(result.stdout)["checks"]}


def test_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(user: int) -> None:
        raise KeyError(user)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    found = checks()
    for name in ("cache folder", "database"):
        assert found[name]["status"] == "fail" and "HOME" in found[name]["fix"]
        assert "no folder for the measurement database" in found[name]["detail"]
    assert {"CPU", "load", "memory", "backends"} <= found.keys()
    assert found["load"]["status"] != "fail" and found["backends"]["status"] == "ok"


def test_in_a_folder_where_no_file_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks("--db", "/proc/db.sqlite")
    for name in ("cache folder", "database"):
        assert found[name]["status"] == "fail" and "--db PATH" in found[name]["fix"]
