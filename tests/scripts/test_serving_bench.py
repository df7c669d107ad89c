"""`scripts/bench serve`: traces, figures, the same weights in other forms, and the whole command on tiny decoders."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from collage.errors import UsageError
from collage.serve.decoder.original import OriginalDecoder
from collage.serve.reference import ReferenceConfig, ReferenceRunner
from scripts.lib import ROOT
from scripts.lib.bench.serve import FORMS, PEERS, _rivals
from scripts.lib.decoders.shape import GPT2, NAMED, DecoderShape, small
from scripts.lib.decoders.write import write_decoder
from scripts.lib.serving.bounds import Machine, Needs, batch_bound_s, trace_bound_s
from scripts.lib.serving.contender import MissingError, Setup, serve_in_batches, serve_stepwise
from scripts.lib.serving.formats.hugging_face import write_folder
from scripts.lib.serving.formats.tensor_file import Array, read_tensors
from scripts.lib.serving.process import ContenderProcess
from scripts.lib.serving.record import Served, agreement, pooled, rate_at
from scripts.lib.serving.static_batch import run_static_batch
from scripts.lib.serving.trace import ORCA, Arrival, fixed_batch, poisson_trace


def test_a_trace_is_the_same_at_every_rate() -> None:
    slow, fast = (poisson_trace(200, rate, 1000, seed=3) for rate in (0.5, 5.0))
    assert [each.prompt for each in slow] == [each.prompt for each in fast]
    assert [each.at_s for each in slow] == pytest.approx([10 * each.at_s for each in fast])
    assert slow[-1].at_s / 200 == pytest.approx(2.0, rel=0.2)
    assert all(32 <= len(each.prompt) <= 512 and 1 <= each.tokens <= 128 for each in slow)
    assert {each.at_s for each in poisson_trace(5, math.inf, 10)} == {0.0}
    assert ORCA.inputs == (32, 512)


def served(at_s: float, *token_s: float) -> Served:
    return Served(Arrival((1,), len(token_s), at_s), tuple(range(len(token_s))), token_s)


def test_figures_of_several_runs() -> None:
    runs = [[served(0.0, 1.0, 2.0), served(1.0, 2.0, 4.0)], [served(0.0, 3.0, 6.0)]]
    found = pooled(runs)
    assert found.requests_per_s == pytest.approx(3 / 10) and found.tokens_per_s == pytest.approx(6 / 10)
    assert found.latency_ms == 1500  # of 1000, 1500 and 3000
    assert found.first_ms == 1000 and found.between_ms == 2000 and found.between_p99_ms == 3000


def test_the_rate_at_a_latency_is_interpolated() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 60.0)]
    assert rate_at(40.0, points) == pytest.approx(3.0)
    assert rate_at(5.0, points) is None
    assert rate_at(100.0, points) == 4.0


def test_agreement_ends_with_the_first_difference() -> None:
    mine = Served(Arrival((1,), 4), (5, 6, 7, 8), (1.0,) * 4)
    other = Served(Arrival((1,), 4), (5, 6, 9, 8), (1.0,) * 4)
    assert agreement([mine], [other]) == pytest.approx(2 / 3)
    assert agreement([mine], [mine]) == 1.0


class Counting:
    """An engine that gives a token of each request in each step."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.most = 0

    def add(self, number: int, arrival: Arrival) -> None:
        self.left[number] = arrival.tokens

    def step(self) -> list[tuple[int, int]]:
        self.most = max(self.most, len(self.left))
        found = [(number, 7) for number in self.left]
        self.left = {number: left - 1 for number, left in self.left.items() if left > 1}
        return found


def test_serving_step_by_step_and_in_batches() -> None:
    arrivals = [Arrival((1,), 3), Arrival((1,), 1), Arrival((1,), 2, 0.05)]
    notes: list[tuple[int, int]] = []
    engine = Counting()
    serve_stepwise(engine, arrivals, lambda *note: notes.append(note))
    assert sorted(notes) == [(0, 7)] * 3 + [(1, 7)] + [(2, 7)] * 2 and engine.most == 2
    batches: list[list[int]] = []
    serve_in_batches(lambda batch: batches.append([number for number, _ in batch]), 1, arrivals)
    assert batches == [[0], [1], [2]]


@pytest.mark.parametrize("shortest_first", [False, True])
def test_a_static_batch_stays_together(shortest_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ReferenceRunner(ReferenceConfig(max_tokens=16))
    iterations: list[int] = []
    step = runner.step
    monkeypatch.setattr(
        runner,
        "step",
        lambda slices: iterations.append(sum(len(each.token_ids) for each in slices)) or step(slices),
    )
    batch = [Arrival(tuple(range(length)), tokens) for length, tokens in ((7, 2), (20, 4), (12, 9))]
    alone: list[list[int]] = [[], [], []]
    for place, each in enumerate(batch):
        run_static_batch(runner, [each], lambda _, token, place=place: alone[place].append(token))
    iterations.clear()
    found: list[list[int]] = [[], [], []]
    run_static_batch(
        runner, batch, lambda place, token: found[place].append(token), shortest_first=shortest_first
    )
    assert found == alone and [len(each) for each in found] == [2, 4, 9]
    if (
        shortest_first
    ):  # 7 tokens of each; the second has 20 + 4 - 1 tokens to compute, and the third 12 + 9 - 1
        assert iterations == [16, 5] + [3] * (20 + 4 - 1 - 7)
    else:
        assert iterations == [16, 16, 7] + [3] * (9 - 1)


def test_bounds_of_gpt2() -> None:
    """As FACTS has it: 494 MB of weights, 0.25 GFLOP a token, 74 KB of cache a token."""
    needs = Needs.of(NAMED["gpt2_124m"])
    assert needs.weight_bytes == pytest.approx(494e6, rel=0.01)
    assert needs.token_flop + needs.row_flop == pytest.approx(0.247e9, rel=0.01)
    assert needs.cache_bytes == 73728
    half = Needs.of(NAMED["gpt2_124m"], "bfloat16")
    assert (2 * half.weight_bytes, 2 * half.cache_bytes) == (needs.weight_bytes, needs.cache_bytes)
    assert half.token_flop == needs.token_flop
    eighth = Needs.of(NAMED["gpt2_124m"], "int8")
    assert (4 * eighth.weight_bytes, eighth.cache_bytes) == (needs.weight_bytes, needs.cache_bytes)
    machine = Machine(20.0, 200.0)
    one = batch_bound_s(1, 32, 32, needs, machine)
    assert one == pytest.approx(32 * needs.weight_bytes / 20e9, rel=0.05)
    assert batch_bound_s(32, 32, 32, needs, machine) > one
    arrivals = fixed_batch(4, 32, 32, 100)
    assert trace_bound_s(arrivals, 4, needs, machine) <= batch_bound_s(4, 32, 32, needs, machine)


def normed(x: Array, weight: Array, bias: Array | None) -> Array:
    if bias is None:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight)
    x = x - x.mean(-1, keepdims=True)
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight + bias)


def attended(q: Array, k: Array, v: Array) -> Array:
    """Causal attention on [heads, tokens, dim]."""
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray((weights / weights.sum(-1, keepdims=True)) @ v)


def gpt2(t: dict[str, Array], shape: DecoderShape, ids: Sequence[int]) -> Array:
    """GPT-2 as Hugging Face has it: Conv1D of [inputs, outputs], gelu_new, and a tied head."""
    x = t["transformer.wte.weight"][list(ids)] + t["transformer.wpe.weight"][: len(ids)]

    def product(name: str, value: Array) -> Array:
        return np.asarray(value @ t[f"{name}.weight"] + t[f"{name}.bias"])

    def norm(name: str, value: Array) -> Array:
        return normed(value, t[f"{name}.weight"], t[f"{name}.bias"])

    for layer in range(shape.layers):
        at = f"transformer.h.{layer}"
        parts = np.split(product(f"{at}.attn.c_attn", norm(f"{at}.ln_1", x)), 3, axis=1)
        q, k, v = (each.reshape(len(ids), shape.heads, -1).swapaxes(0, 1) for each in parts)
        x = x + product(f"{at}.attn.c_proj", attended(q, k, v).swapaxes(0, 1).reshape(len(ids), -1))
        up = product(f"{at}.mlp.c_fc", norm(f"{at}.ln_2", x))
        up = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = x + product(f"{at}.mlp.c_proj", up)
    return np.asarray(norm("transformer.ln_f", x) @ t["transformer.wte.weight"].T)


def qwen2(t: dict[str, Array], shape: DecoderShape, ids: Sequence[int]) -> Array:
    """Qwen2 as Hugging Face has it: Linear of [outputs, inputs], rotary halves, grouped heads, SwiGLU."""
    x = t["model.embed_tokens.weight"][list(ids)]
    half = shape.head // 2
    angles = np.arange(len(ids))[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = (np.concatenate([f(angles)] * 2, axis=1) for f in (np.cos, np.sin))

    def rotated(value: Array) -> Array:
        return np.asarray(value * cos + np.concatenate([-value[..., half:], value[..., :half]], -1) * sin)

    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        y = normed(x, t[f"{at}.input_layernorm.weight"], None)
        q, k, v = (
            (y @ t[f"{at}.self_attn.{each}_proj.weight"].T + t[f"{at}.self_attn.{each}_proj.bias"])
            .reshape(len(ids), -1, shape.head)
            .swapaxes(0, 1)
            for each in "qkv"
        )
        k, v = (np.repeat(each, shape.heads // shape.kv_heads, axis=0) for each in (rotated(k), v))
        mixed = attended(rotated(q), k, v).swapaxes(0, 1).reshape(len(ids), -1)
        x = x + mixed @ t[f"{at}.self_attn.o_proj.weight"].T
        y = normed(x, t[f"{at}.post_attention_layernorm.weight"], None)
        gate = y @ t[f"{at}.mlp.gate_proj.weight"].T
        up = gate / (1 + np.exp(-gate)) * (y @ t[f"{at}.mlp.up_proj.weight"].T)
        x = x + up @ t[f"{at}.mlp.down_proj.weight"].T
    return np.asarray(normed(x, t["model.norm.weight"], None) @ t["lm_head.weight"].T)


@pytest.mark.parametrize("name", ["gpt2_124m", "qwen2_like"])
def test_other_systems_get_the_same_function(name: str, tmp_path: Path) -> None:
    model = write_decoder(name, tmp_path, tiny=True)
    shape = small(NAMED[name])
    write_folder(model, shape, tmp_path / "peers")
    tensors = read_tensors(tmp_path / "peers" / "model.safetensors")
    config = json.loads((tmp_path / "peers" / "config.json").read_text())
    assert config["vocab_size"] == shape.vocabulary
    ids = [5, 77, 201, 5, 9, 130]
    forward = gpt2 if shape.family == GPT2 else qwen2
    wanted = OriginalDecoder(model, 1).logits(ids)
    assert np.abs(forward(tensors, shape, ids) - wanted).max() < 1e-3


def test_a_peer_that_is_not_installed_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    if subprocess.run([sys.executable, "-c", "import llama_cpp"], capture_output=True).returncode == 0:
        pytest.skip("llama-cpp-python is installed")
    setup = Setup(tmp_path, tmp_path / "no.collage", 1, 4)
    with pytest.raises(MissingError, match=r"llama\.cpp: llama-cpp-python is not installed"):
        ContenderProcess("llama.cpp", Path(sys.executable), setup)


def test_llama_cpp_is_not_compared_in_bfloat16(tmp_path: Path) -> None:
    setup = Setup(tmp_path, tmp_path / "no.collage", 1, 4, "bfloat16")
    with pytest.raises(MissingError, match=r"llama\.cpp is compared in float32 and int8 only"):
        ContenderProcess("llama.cpp", Path(sys.executable), setup)


def test_the_whole_command_on_a_tiny_decoder(tmp_path: Path) -> None:
    command = [
        sys.executable, str(ROOT / "scripts" / "bench"), "serve", "qwen2_like", "--quick", "--peers", "none",
        "--folder", str(tmp_path), "--db", str(tmp_path / "db.sqlite"), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert found["machine"]["gbytes_per_s"] > 0
    (model,) = found["models"]
    forms = {"request-level", "whole-batches", "shortest-first"}
    assert set(model["contenders"]) == {"collage", *forms}
    assert not model["failed"]
    assert model["right"]["tokens"] > 20 and model["right"]["same_tokens"] == 1.0
    assert model["right"]["largest_gap"] == 0.0 and 0 < model["right"]["largest_error"] < 1e-3
    assert all(row["same_tokens"] == 1.0 and row["share_of_static"] > 0 for row in model["alone"])
    assert all(row["share_noise"] >= 0 and row["rounds"] >= 1 for row in model["alone"])
    assert all(row["drawn_share"] > 0 for row in model["alone"])
    rows = model["trace"]["by_contender"]
    assert all(rows[form]["same_tokens"] == 1.0 for form in forms)
    assert (
        rows["whole-batches"]["saturated"]["requests_per_s"]
        > rows["shortest-first"]["saturated"]["requests_per_s"]
    )
    assert rows["collage"]["saturated"]["requests"] == 12
    ratios = model["trace"]["ratios"]
    assert all(ratios[form]["saturated"] > 0 for form in ("request_level", "whole_batches", "shortest_first"))
    assert set(model["between"]) == {"collage", "request-level"}
    assert model["between"]["collage"]["p99_over_median"] >= 1.0
    assert model["scheduler_us"]["scheduler"] > 0


def test_forms_and_peers_are_chosen_by_name() -> None:
    found = _rivals(("shortest-first",), ("none",), ())
    assert found.names == ("collage", "shortest-first")
    assert _rivals(None, None, ()).names == ("collage", *FORMS, *PEERS)
    with pytest.raises(UsageError, match="unknown form: batches"):
        _rivals(("batches",), None, ())
