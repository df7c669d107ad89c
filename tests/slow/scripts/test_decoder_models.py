"""`scripts/models` writes decoders without torch, and their caches work: tokens one by one give the same logits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from collage.serve.decoder.check import OriginalDecoder
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


def test_command(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "models"), "--small", "--out", str(tmp_path), *NAMED]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert done.stdout.split() == [str(tmp_path / f"{name}.onnx") for name in NAMED]
    for name in NAMED:
        original = OriginalDecoder(tmp_path / f"{name}.onnx", 1)
        tokens = [5, 77, 201, 5, 9]
        whole = original.logits(tokens)
        cache, rows = original.empty_cache(), []
        for place, token in enumerate(tokens):
            logits, cache = original.step([token], place, cache)
            rows.append(logits[0])
        assert np.abs(np.stack(rows) - whole).max() < 1e-4
        assert whole.std() > 1  # the best token stands out


def test_weights_beside_the_model_are_the_same(tmp_path: Path) -> None:
    shape = small(NAMED["llama_1b"])
    inside, outside = decoder(shape), decoder(shape, beside=tmp_path / "it.bin")
    onnx.save_model(outside, str(tmp_path / "it.onnx"))
    assert (tmp_path / "it.bin").stat().st_size > 64 * 256 * 4
    found = OriginalDecoder(tmp_path / "it.onnx", 1).logits([1, 2, 3])
    assert np.array_equal(found, OriginalDecoder(inside, 1).logits([1, 2, 3]))
