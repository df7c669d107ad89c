"""Races, and contenders from outside in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.bench.engines import Contest, bench, prepare, reference
from collage.bench.race import Race, race, verdict
from collage.core.progress import Progress
from collage.errors import CollageError
from collage.graph.dataflow import Array
from tests.helpers.models import elementwise_net

HERE = "tests.helpers.numpy_contender"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("race") / "net.onnx"
    onnx.save_model(elementwise_net(), str(path))
    return path


def ignore(progress: Progress) -> None:
    pass


def test_outside_contenders_are_timed_and_compared(network: Path) -> None:
    setup = prepare(network, threads=1)
    expected, failed = reference(setup)
    assert expected is not None and not failed
    setups = {name: replace(setup, engine=f"{HERE}:{name}") for name in ("right", "wrong", "broken")}
    found = race(setups, expected=expected, rounds=1, progress=ignore)
    assert list(found.timings) == ["right", "wrong"]
    assert found.timings["right"]["max_relative_error"] < 1e-6
    assert found.timings["wrong"]["max_relative_error"] > 0.1
    assert 0 < found.timings["right"]["min_us"] <= found.timings["right"]["median_us"]
    assert found.failed == {"broken": "RuntimeError: no kernel for 1 threads"}


def test_processes_of_a_contender_share_the_rounds(network: Path) -> None:
    started: list[tuple[str, int]] = []
    asked: list[int] = []

    def show(progress: Progress) -> None:
        if progress.stage == "start" or progress.text == "":
            started.append((progress.text, progress.done))

    def errors(run: Callable[[Sequence[Array]], Sequence[Array]]) -> Sequence[float]:
        asked.append(len(run([np.ones((4, 64), np.float32)])))
        return [0.5]

    setup = prepare(network, threads=1)
    setups = {name: replace(setup, engine=f"{HERE}:{name}") for name in ("right", "broken")}
    found = race(setups, errors=errors, rounds=5, processes=2, progress=show)
    assert started == [("right", 0), ("broken", 1), ("", 2), ("right", 0), ("", 5)]
    assert len(found.bursts["right"]) == 5
    assert (found.errors, asked) == ({"right": (0.5,)}, [1])
    assert list(found.failed) == ["broken"]


def test_rounds_tell_a_difference_that_is_smaller_than_the_noise() -> None:
    drift = [100.0 + 40.0 * (number % 3) for number in range(12)]
    bursts = {
        "us": drift,
        "slower": [1.02 * each for each in drift],
        "now and then": [each * (1.02 if number % 2 else 0.99) for number, each in enumerate(drift)],
    }
    found = Race({}, bursts, {})
    assert found.ratio("slower", to="us") == pytest.approx(1.02)
    assert found.interval("slower", "us") == pytest.approx((1.02, 1.02))
    assert verdict(*found.interval("slower", "us")) == "faster"  # the first one takes longer
    assert verdict(*found.interval("us", "slower")) == "slower"
    assert verdict(*found.interval("now and then", "us")) == "as fast"


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((1.001, 1.4), "faster"),
        ((0.6, 0.999), "slower"),
        ((0.97, 1.03), "as fast"),
        ((1.0, 1.04), "as fast"),
        ((0.8, 1.04), "unsure"),
        ((0.97, 1.2), "unsure"),
        ((1.0, 1.06), "unsure"),
    ],
)
def test_verdicts_follow_from_the_interval(interval: tuple[float, float], expected: str) -> None:
    assert verdict(*interval) == expected


def test_a_required_contender_that_fails_ends_the_race(network: Path) -> None:
    setup = replace(prepare(network, threads=1), engine=f"{HERE}:broken")
    with pytest.raises(CollageError, match=r"mine cannot run .*no kernel"):
        race({"mine": setup}, required={"mine"}, progress=ignore)


def test_bench_takes_others(network: Path, tmp_path: Path) -> None:
    others = {"numpy": f"{HERE}:right", "broken": f"{HERE}:broken", "nowhere": "tests.nowhere:run"}
    contest = Contest(engines=["onnxruntime"], others=others, rounds=1, threads=1)
    found = bench(network, contest, db=tmp_path / "db")
    assert list(found["engines"]) == ["onnxruntime", "numpy", "collage"]
    assert found["engines"]["numpy"]["max_relative_error"] < 1e-6
    assert found["failed"].keys() == {"broken", "nowhere"}
    assert "ModuleNotFoundError" in found["failed"]["nowhere"]
    assert found["best_engine"] in ("onnxruntime", "numpy")
