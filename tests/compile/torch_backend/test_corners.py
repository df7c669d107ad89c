"""Unusual subgraphs: each is as PyTorch's, compiled or left to PyTorch with one line that says why."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collage.errors import UsageError
from collage.torch_backend import backend
from collage.torch_backend.fused import attention, encoder_layer, plain_form

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The reasons of the subgraphs that stay PyTorch's."""
    caplog.set_level(logging.WARNING, backend.__name__)
    return lambda: [
        each.message.partition("eager mode: ")[2] for each in caplog.records if each.name == backend.__name__
    ]


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="collage", options=options or None)


def same(actual: Any, expected: Any) -> None:
    """The tensors are the same, with strides and dtypes."""
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=1e-4, check_stride=True)


def check(function: Any, *args: Any, times: int = 3) -> Any:
    """Call the function in PyTorch and compiled, several times."""
    found = compiled(function)
    with torch.no_grad():
        for _ in range(times):
            same(found(*args), function(*args))
    return found


def test_two_subgraphs_by_a_graph_break(told: Callable[[], list[str]], cache: Any) -> None:
    def broken(x: Any) -> Any:
        y = torch.tanh(x) * 2
        torch._dynamo.graph_break()
        return torch.relu(y - 1)

    check(broken, torch.randn(4, 5))
    assert not told() and len([*cache.glob("*.collage")]) == 2


def test_scalars_and_integers(told: Callable[[], list[str]]) -> None:
    check(lambda x, s: x * s + 1, torch.randn(3), torch.tensor(2.0))
    check(lambda i, t: t[i] * 2, torch.tensor([0, 3, 1]), torch.randn(4, 8))
    check(lambda i: i + 1, torch.arange(5, dtype=torch.int32))
    check(lambda x: (x > 0, x.sum()), torch.randn(3, 3))
    check(lambda x, k: x * k, torch.randn(3), 2)
    assert told() == []


def test_tensors_that_are_not_contiguous(told: Callable[[], list[str]]) -> None:
    check(lambda x: torch.sin(x), torch.randn(4, 6).t())
    check(lambda x: torch.exp(x), torch.randn(4, 12)[:, ::3])
    check(lambda x: (torch.exp(x).t(), (x * 2).expand(5, 4)), torch.randn(1, 4))
    check(nn.Conv2d(3, 8, 3).eval(), torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last))
    assert told() == []


def test_outputs_that_share_memory(told: Callable[[], list[str]]) -> None:
    def shares(x: Any) -> Any:
        y = torch.sin(x)
        return x, x.view(-1), x[1:], y, y, y.t(), y[0]

    found = check(shares, torch.randn(3, 4))
    x = torch.randn(3, 4)
    same_x, flat, rest, y, again, turned, first = found(x)
    x.add_(1)
    same(flat, x.view(-1))
    same(rest, x[1:])
    assert same_x is x and y is again
    y.zero_()
    assert not turned.any() and not first.any()

    check(lambda x: ((e := torch.exp(x))[:, ::2], e[:, 1::2], (x + 1).chunk(2)), torch.randn(3, 6))
    assert told() == []
    check(lambda x: (x.view(-1), x[0]), torch.randn(3, 4))
    check(lambda x: ((e := torch.exp(x))[1:], e[:-1]), torch.randn(3, 4))
    assert told() == [
        "all of its outputs are inputs of it, or views of them.",
        "two outputs share a part of their memory.",
    ]


def test_inputs_that_change(told: Callable[[], list[str]]) -> None:
    def changes(x: Any) -> Any:
        x.add_(1)
        return x * 2

    found = compiled(changes)
    for _ in range(2):
        x = torch.zeros(3)
        same(found(x), torch.full((3,), 2.0))
        same(x, torch.ones(3))
    assert told() == ["it changes its inputs in place."]

    def inside(x: Any) -> Any:
        y = torch.sin(x)
        y.mul_(2).relu_()
        y[0] = 1
        return y

    check(inside, torch.randn(4, 3))
    assert len(told()) == 1

    norm = nn.BatchNorm2d(3)
    found, plain = compiled(norm), nn.BatchNorm2d(3)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 3, 4, 4)
            same(found(x), plain(x))
    same(norm.running_mean, plain.running_mean)
    assert norm.num_batches_tracked == 2


def test_training(told: Callable[[], list[str]]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    found = compiled(model)
    found(torch.randn(64, 4)).sum().backward()
    assert model[0].weight.grad is not None
    assert told() == ["its outputs need gradients. Call it within torch.no_grad(), or torch.inference_mode()."]
    with torch.no_grad():  # in train mode: the generator's numbers
        x = torch.randn(64, 4)
        for _ in range(2):
            torch.manual_seed(7)
            expected = model(x)
            torch.manual_seed(7)
            same(found(x), expected)
    assert told()[1:] == ["it draws random numbers, which are those of PyTorch's generator."]
    model.eval()
    with torch.no_grad():
        same(found(x), model(x))
        same(found(x), model(x))
    assert len(told()) == 2


def test_weights_that_change(told: Callable[[], list[str]]) -> None:
    model = nn.Linear(4, 4).eval()
    found = check(model, torch.randn(2, 4))
    x = torch.randn(2, 4)
    with torch.no_grad():
        model.load_state_dict(nn.Linear(4, 4).state_dict())
        for _ in range(2):
            same(found(x), model(x))
    assert len(told()) == 1 and told()[0].startswith("its parameters or buffers have changed")
    torch.compiler.reset()
    check(model, x)
    assert len(told()) == 1


def test_each_layer_by_itself(told: Callable[[], list[str]], cache: Any) -> None:
    """The layers share their code, and so a subgraph, and have weights of their own."""
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)).eval()
    plain = [*layers]
    found = [compiled(each) for each in layers]
    with torch.no_grad():
        for _ in range(2):
            x = y = torch.randn(2, 4)
            for one, other in zip(found, plain, strict=True):
                x, y = one(x), other(y)
                same(x, y)
    assert told() == [] and len([*cache.glob("*.collage")]) == 3


def test_many_sets_of_weights(told: Callable[[], list[str]], cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_MODULES", 1)
    layers = [nn.Linear(4, 4).eval() for _ in range(3)]
    found = [compiled(each) for each in layers]
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 4)
            for one, other in zip(found, layers, strict=True):
                same(one(x), other(x))
    assert told() == ["it has been compiled for 1 sets of weights, which are enough."]
    assert len([*cache.glob("*.collage")]) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions(dtype: str, told: Callable[[], list[str]]) -> None:
    kind = getattr(torch, dtype)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(kind).eval()
    found = compiled(model)
    x = torch.randn(3, 16, dtype=kind)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(found(x), model(x), rtol=5e-2, atol=2e-2)
    # Engines compute the error function of float64 in float32.
    assert all(dtype == "float64" and each.startswith("its outputs differ") for each in told())


def test_another_batch(told: Callable[[], list[str]]) -> None:
    model = nn.Linear(4, 4).eval()
    found = compiled(model)
    with torch.no_grad():
        for rows in (2, 3, 5):
            x = torch.randn(rows, 4)
            same(found(x), model(x))
    assert len(told()) == 1 and told()[0].startswith("its shapes are dynamic. torch.compile(..., dynamic=False)")

    torch.compiler.reset()
    found = torch.compile(model, backend="collage", dynamic=False)
    with torch.no_grad():
        for rows in (2, 3):
            x = torch.randn(rows, 4)
            same(found(x), model(x))
    assert len(told()) == 1


class Block(nn.Module):  # type: ignore[misc,name-defined]
    """A layer of a transformer, with outputs as Hugging Face has them."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, 50)

    def forward(self, input_ids: Any, attention_mask: Any | None = None) -> dict[str, Any]:
        x = self.embed(input_ids)
        b, t, c = x.shape
        q, k, v = (each.view(b, t, self.heads, -1).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        x = x + self.mlp(x)
        return {"logits": self.head(x), "last_hidden_state": x, "past_key_values": ((k, v),)}


def test_a_transformer(told: Callable[[], list[str]]) -> None:
    ids = torch.randint(50, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    check(Block().eval(), ids)
    check(Block().eval(), ids, mask)
    assert told() == []


def test_the_fused_operations_of_transformers(told: Callable[[], list[str]]) -> None:
    """In eval mode PyTorch's own layers call operations that have no ONNX form."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", norm_first=True).eval()
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    x = torch.randn(2, 5, 16)
    found = compiled(lambda x: layer(x, src_mask=causal))
    with torch.no_grad():
        for _ in range(2):
            same(found(x), layer(x, src_mask=causal))
    check(nn.MultiheadAttention(16, 2, batch_first=True).eval(), x, x, x)
    assert told() == []


@pytest.mark.parametrize("masks", ["none", "causal", "padding", "both"])
def test_fused_operations_in_plain_ones(masks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    for name, form in (("_transformer_encoder_layer_fwd", encoder_layer), ("_native_multi_head_attention", attention)):
        usual = getattr(torch, name)
        assert plain_form(usual) is form

        def called(*args: Any, usual: Any = usual, form: Any = form) -> Any:
            found = usual(*args)
            calls.append((form(*args), found))
            return found

        monkeypatch.setattr(torch, name, called)
    x, padding = torch.randn(3, 5, 16), torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = padding[1] = True
    given: dict[str, Any] = {}
    if masks in ("causal", "both"):
        given["src_mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    if masks in ("padding", "both"):
        given["src_key_padding_mask"] = padding
    with torch.no_grad():
        for gelu, first in ((False, False), (True, True)):
            layer = nn.TransformerEncoderLayer(
                16, 2, 32, batch_first=True, activation="gelu" if gelu else "relu", norm_first=first
            ).eval()
            for each in layer.parameters():
                each.add_(torch.randn_like(each) * 0.1)
            layer(x, **given)
        if not given:
            for weights in ({}, {"need_weights": False}, {"average_attn_weights": False}):
                layer.self_attn(x, x, x, **weights)
    assert len(calls) == (2 if given else 5)
    for actual, expected in calls:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_inference_mode_and_autocast(told: Callable[[], list[str]]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    found = compiled(model)
    with torch.inference_mode():
        for _ in range(2):
            x = torch.randn(2, 8)
            same(found(x), model(x))
    assert told() == []
    torch.compiler.reset()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            x = torch.randn(2, 8)
            torch.testing.assert_close(found(x), model(x), rtol=5e-2, atol=2e-2)


def test_what_cannot_be_exported(told: Callable[[], list[str]]) -> None:
    check(lambda x: torch.linalg.eigvalsh(x) + 1, torch.eye(3))
    check(lambda x: torch.view_as_complex(x) * 2, torch.randn(3, 2))
    assert len(told()) == 2
    assert (
        told()[0]
        == "PyTorch cannot write the subgraph as ONNX: it has no ONNX form of the operation aten._linalg_eigh."
    )
    check(lambda x: torch.ones(3) + 1, torch.randn(3))


def test_another_device(told: Callable[[], list[str]]) -> None:
    found = compiled(lambda x: x * 2)
    assert found(torch.zeros(3, device="meta")).device.type == "meta"
    assert told() == ["an input is on meta, and Collage takes tensors of the CPU."]


def test_options(told: Callable[[], list[str]]) -> None:
    x = torch.randn(4, 4)
    same(compiled(torch.sin, budget_s=1, threads=1, backends="onnxruntime", cache=False)(x), x.sin())
    with pytest.raises(Exception, match=r"unknown option of the backend collage: budget\. Valid: backends, budget_s, "):
        compiled(torch.cos, budget=1)(x)
    with pytest.raises(Exception, match=r"has no mode max-autotune: give options=\{'budget_s': seconds\} instead"):
        torch.compile(torch.tan, backend="collage", mode="max-autotune")(x)


def test_several_threads() -> None:
    """PyTorch's tracers share globals, so that a subgraph may stay PyTorch's; its outputs are right in any case."""
    model = nn.Linear(16, 16).eval()
    found = compiled(model)
    failed: list[BaseException] = []
    inputs = torch.randn(20, 2, 16)  # other threads' random numbers look like those of the subgraph

    def work() -> None:
        try:
            with torch.no_grad():
                for x in inputs:
                    same(found(x), model(x))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.data.mul_(2),
        lambda weight: np.multiply(weight.detach().numpy(), 2, out=weight.detach().numpy()),
        lambda weight: torch.optim.SGD([weight], lr=10.0, fused=True).step(),
    ],
    ids=["data", "numpy", "fused"],
)
def test_writes_that_pytorch_does_not_count(told: Callable[[], list[str]], write: Callable[[Any], object]) -> None:
    model = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 3)).eval()
    x = torch.randn(2, 4)
    model(x).square().sum().backward()
    found = check(model, x)
    write(model[2].weight)
    with torch.no_grad():
        for _ in range(2):
            same(found(x), model(x))
    assert len(told()) == 1 and told()[0].startswith("its parameters or buffers have changed")


def test_values_of_options_that_are_wrong() -> None:
    found = torch.compile(nn.Linear(4, 4).eval(), backend="collage", options={"budget_s": -3})
    with torch.no_grad(), pytest.raises(UsageError, match="budget_s must be more than 0 seconds"):
        found(torch.randn(2, 4))
