"""Tables of figures are made from files, never by hand."""

from __future__ import annotations

from scripts.lib.bench.tables import PAGE, README, written


def test_the_page_and_the_readme_are_what_the_command_writes() -> None:
    assert (PAGE.read_text(), README.read_text()) == written(), "run scripts/bench tables"
