"""What is recorded is not made again; what cannot be read back is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collage.measure_db.database import Database, NetworkKey
from collage.measure_db.keys import (
    Fact,
    RaceKey,
    as_number,
    read_numbers,
    read_text,
    write_numbers,
)
from collage.measure_db.results import Timing

TIMING = Timing(100.0, 1.0, 99.0, 120.0, 40)
NUMBER: Fact[float] = Fact("number", float, as_number)
NUMBERS: Fact[tuple[float, ...]] = Fact("numbers", write_numbers, read_numbers)
TEXT: Fact[str] = Fact("text", str, read_text)


class Making:
    """Makes a value, and counts how often."""

    def __init__(self, value: Any) -> None:
        self.value, self.times = value, 0

    def __call__(self) -> Any:
        self.times += 1
        return self.value


def network(placement: str) -> tuple[NetworkKey, str]:
    return NetworkKey("g", placement, 2, "EPYC", "v"), placement


KEYS = [
    (NUMBER.at("here"), 1.5),
    (NUMBERS.at("here"), (1.0, 2.5)),
    (TEXT.at("here"), "words"),
    (RaceKey({"a": network("a"), "b": network("b")}), {"a": TIMING, "b": TIMING}),
]


@pytest.mark.parametrize(("key", "value"), KEYS)
def test_a_value_is_made_once(key: Any, value: Any, tmp_path: Path) -> None:
    make = Making(value)
    for _ in range(2):
        with Database(tmp_path / "db.sqlite") as database:
            assert database.remember(key, make) == value
    assert make.times == 1


@pytest.mark.parametrize("stored", ["no number", [1.0], True])
def test_what_is_no_such_value_is_made_again(stored: Any, tmp_path: Path) -> None:
    with Database(tmp_path / "db.sqlite") as database:
        database.put_fact("number", "here", stored)
        assert database.remember(NUMBER.at("here"), Making(2.0)) == 2.0
        assert database.get_facts("number", ["here"]) == {"here": 2.0}


def test_an_interleaved_run_is_known_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    with Database(tmp_path / "db.sqlite") as database:
        database.put_network(network("a")[0], TIMING)
        make = Making({"a": TIMING, "b": TIMING})
        database.remember(RaceKey({"a": network("a"), "b": network("b")}), make)
        assert make.times == 1


def test_a_value_whose_making_fails_is_not_recorded(tmp_path: Path) -> None:
    def fail() -> float:
        raise KeyboardInterrupt

    with Database(tmp_path / "db.sqlite") as database:
        with pytest.raises(KeyboardInterrupt):
            database.remember(NUMBER.at("here"), fail)
        assert database.remember(NUMBER.at("here"), Making(1.0)) == 1.0
