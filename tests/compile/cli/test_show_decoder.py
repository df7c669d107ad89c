"""``collage show`` of a compiled decoder tells what ``compile-decoder`` told, and what runs each segment."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small
from tests.helpers.cli.helpers import fails, json_of, succeeds


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file of a decoder of three layers, and what the command printed. Its ONNX file and data are links."""
    folder = tmp_path_factory.mktemp("decoder")
    (folder / "blobs").mkdir()
    options = {"save_as_external_data": True, "location": "it.data"}
    onnx.save_model(decoder(small(NAMED["gpt2_124m"], 3)), str(folder / "blobs" / "it.onnx"), **options)
    for name in ("it.onnx", "it.data"):
        (folder / "blobs" / name).rename(folder / "blobs" / f"of {name}")
        (folder / name).symlink_to(f"blobs/of {name}")
    options = ["--buckets", "1,4", "--quick", "--threads", "1", "--db", folder / "db", "-q"]
    told = succeeds("compile-decoder", folder / "it.onnx", "-o", folder / "it.collage", *options)
    return folder / "it.collage", told


def test_the_times_are_those_of_the_compile(made: tuple[Path, str]) -> None:
    path, told = made
    times, _, _ = told.partition("\n\nwrote ")
    shown = succeeds("show", path)
    assert times.startswith("tokens  ms an iteration") and times in shown
    assert shown.startswith("it: a decoder of 3 layers, compiled for serving (`collage serve`)")
    rows = [line.split() for line in shown.splitlines() if line.startswith(("1 ", "4 "))]
    assert {row[0] for row in rows} == {"1", "4"} and any("logits" in row for row in rows)


def test_json_has_the_kernels_of_each_segment(made: tuple[Path, str]) -> None:
    found = json_of("show", made[0], "--json")
    assert (found["model"], found["layers"], found["buckets"], found["processes"]) == ("it", 3, [1, 4], 1)
    assert found["costs_ms"].keys() == {"1", "4"} and found["max_error"] < 1e-3
    assert [len(segments) for segments in found["segments"].values()] == [3, 3]
    kernels = [region for segments in found["segments"].values() for each in segments for region in each]
    assert all(region["backend"] and region["ops"] for region in kernels)


def test_what_is_for_modules_only_says_so(made: tuple[Path, str]) -> None:
    fails(2, "show", made[0], "--explain", words=("decoder", "for modules"))
    fails(1, "run", made[0], "--random", words=("collage show", "collage serve"))
