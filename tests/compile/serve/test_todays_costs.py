"""Times of iterations that were measured beside other work are measured again when the decoder is opened."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from collage.api import default_registry
from collage.serve.decoder import runner as runner_module
from collage.serve.decoder.build import compile_decoder
from collage.serve.decoder.compile import DecoderOptions, with_costs
from collage.serve.decoder.file import save_decoder
from collage.serve.decoder.runner import use_todays_costs
from collage.serve.model import open_runner
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small


class Timed:
    """A runner whose iterations take so long, and of which a file says something else."""

    def __init__(self, known_ms: Mapping[int, float]) -> None:
        self.buckets = tuple(known_ms)
        self.known_ms = dict(known_ms)

    def cost_ms(self, tokens: int) -> float:
        return self.known_ms[tokens]

    def set_costs(self, costs_ms: Mapping[int, float], body_ms: Mapping[int, float]) -> None:
        self.known_ms = dict(costs_ms)


NOW = {1: 10.0, 8: 12.0, 32: 20.0, 256: 90.0}


@pytest.mark.parametrize(
    ("known", "again"),
    [
        (NOW, False),
        ({**NOW, 1: 14.0, 32: 29.0}, False),  # noise
        ({**NOW, 1: 16.0}, True),
        ({each: ms / 9 for each, ms in NOW.items()}, False),  # other work may be going on now
    ],
)
def test_only_much_faster_iterations_are_measured_again(
    known: dict[int, float], again: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner: Any = Timed(known)
    monkeypatch.setattr(runner_module, "streams_ms", lambda _, tokens, __: NOW[tokens])
    monkeypatch.setattr(runner_module, "measured_ms", lambda *_: (NOW, NOW))
    assert use_todays_costs(runner) == again
    assert runner.known_ms == (NOW if again else known)
    assert ("measured again" in caplog.text) == again


def test_a_decoder_that_was_compiled_beside_other_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = DecoderOptions((1, 16), threads=2, db=tmp_path / "m.sqlite", quick=True, max_length=64)
    compiled = compile_decoder(decoder(small(NAMED["gpt2_124m"])), options, default_registry(), lambda _: None)
    wrong = {1: 4e4, 16: 3e4}  # so that iterations of one token would be run in the larger bucket, too
    path = tmp_path / "it.collage"
    save_decoder(with_costs(compiled, wrong, wrong), path)
    with caplog.at_level(logging.WARNING):
        runner: Any = open_runner(path, block_count=8)
    assert "30000.0" in caplog.text
    assert runner.cost_ms(1) < 1e4 and runner.body_ms(16) < 1e4
    runner.close()
