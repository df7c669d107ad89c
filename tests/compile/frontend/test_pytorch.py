"""Modules and programs of PyTorch through ``collage.compile``."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import collage
from collage.errors import InputError, ModelError, UsageError
from collage.frontend.pytorch.from_torch import from_torch
from tests.helpers.models import make_model

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn


@pytest.fixture
def compile(tmp_path: Path) -> Any:
    torch.manual_seed(0)
    return partial(collage.compile, budget_s=1, db=tmp_path / "db.sqlite", progress=False)


class Model(nn.Module):  # type: ignore[misc,name-defined]
    """Outputs as Hugging Face has them, and arguments of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.norm = nn.Embedding(20, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Any, bias: Any = None, *, scale: float = 1.0) -> dict[str, Any]:
        hidden = self.norm(self.drop(self.embed(ids)).transpose(1, 2)).transpose(1, 2)
        logits = self.head(hidden) * scale
        return {"logits": logits if bias is None else logits + bias, "hidden": (hidden, None), "ids": ids}


def test_a_module(compile: Any) -> None:
    model = Model()
    model.norm.eval()
    ids, bias = torch.randint(20, (2, 5)), torch.randn(3)
    module = compile(model, {"bias": bias, "ids": ids, "scale": 2.0})
    assert (model.training, model.drop.training, model.norm.training) == (True, True, False)
    assert [*module.inputs.items()] == [("ids", "int64[2x5]"), ("bias", "float32[3]")]
    assert [*module.outputs] == ["logits", "hidden_0", "ids_2"]
    assert module.report.model == "Model"
    model.eval()
    for _ in range(3):
        ids, bias = torch.randint(20, (2, 5)), torch.randn(3)
        expected = model(ids, bias, scale=2.0)
        found = module.run(ids=ids, bias=bias)
        torch.testing.assert_close(found["logits"], expected["logits"].detach())
        torch.testing.assert_close(found["ids_2"], ids)
        by_array = module.run({"ids": ids.numpy(), "bias": bias.numpy()})
        assert {type(each) for each in by_array.values()} == {np.ndarray}
        np.testing.assert_array_equal(by_array["logits"], found["logits"].numpy())
    with pytest.raises(InputError, match="input bias requires grad"):
        module(ids, nn.Parameter(bias))
    with torch.no_grad():
        assert not module(ids, nn.Parameter(bias))[0].requires_grad


@pytest.mark.parametrize("example", [(torch.ones(2, 6),), torch.ones(2, 6), np.ones((2, 6), np.float32)])
def test_examples(compile: Any, example: Any) -> None:
    model = nn.Linear(6, 3)
    module = compile(model, example)
    x = torch.randn(2, 6)
    torch.testing.assert_close(module(x), model(x).detach())
    assert module.outputs == {"output": "float32[2x3]"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(compile: Any, dtype: str) -> None:
    kind = getattr(torch, dtype)
    model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 3)).to(kind)
    module = compile(model, torch.randn(2, 6, dtype=kind))
    x = torch.randn(2, 6, dtype=kind)
    found = module(x)
    assert found.dtype == kind
    torch.testing.assert_close(found, model(x).detach(), rtol=5e-2, atol=2e-2)


def test_a_layer_of_pytorch(compile: Any) -> None:
    """In eval mode it calls a fused operation, which has no ONNX form."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x = torch.randn(2, 5, 16)
    module = compile(layer, x)
    assert torch.backends.mha.get_fastpath_enabled()
    torch.testing.assert_close(module(x), layer.eval()(x).detach(), rtol=1e-3, atol=1e-4)


def test_a_program_with_dynamic_dimensions(compile: Any) -> None:
    class Two(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            return torch.softmax(x @ y.t(), 0), x.sum(0)

    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "y": {0: batch}}
    program = torch.export.export(Two(), (torch.randn(4, 3), torch.randn(4, 3)), dynamic_shapes=shapes)
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    for found, expected in zip(compile(program)(x, y), Two()(x, y), strict=True):  # placed for 1
        torch.testing.assert_close(found, expected)
    for module in (compile(program, batch=5), compile(program, (x, y)), compile(program, {"y": y, "x": x})):
        assert module.inputs == {"x": "float32[5x3]", "y": "float32[5x3]"}
        for found, expected in zip(module(x, y), Two()(x, y), strict=True):
            torch.testing.assert_close(found, expected)


def test_an_onnx_program(compile: Any) -> None:
    model = nn.Linear(6, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model.eval(), (torch.randn(2, 6),), dynamo=True, verbose=False)
    x = torch.randn(2, 6)
    for module in (compile(program), compile(program, x)):
        torch.testing.assert_close(module(x), model(x).detach())
    for each in ((x, x), {"y": x}, {"input": 1}):
        with pytest.raises(UsageError, match="the example does not fit the ONNXProgram, which takes tensors: input"):
            compile(program, each)


def test_other_shapes_and_compiled_modules(compile: Any) -> None:
    """A module that ``torch.compile`` has made is the one inside of it."""
    model = nn.Sequential(nn.Linear(6, 3), nn.ReLU())
    module = compile(torch.compile(model, backend="eager"), torch.randn(2, 6))
    with pytest.raises(InputError, match="input input has shape 3x6, the module was compiled for 2x6"):
        module(torch.randn(3, 6))


def test_no_parameters_and_no_inputs(compile: Any) -> None:
    class Doubled(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x, x * 2, x * 2

    x = torch.randn(4)
    found = compile(Doubled(), x)(x)
    for each, expected in zip(found, Doubled()(x), strict=True):
        torch.testing.assert_close(each, expected)


def test_several_sets_of_shapes(tmp_path: Path) -> None:
    """Tensors give tensors from each placement, from ONNX Runtime on other shapes, and from a loaded file."""
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 3]}, {"y": ["n", 3]})
    shaped = collage.compile_shapes(
        model, [{"x": (2, 3)}, {"x": (4, 3)}], budget_s=2, db=tmp_path / "db.sqlite", progress=False
    )
    shaped.save(tmp_path / "shaped.collage")
    for module in (shaped, collage.load(tmp_path / "shaped.collage")):
        for rows in (2, 4, 5):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(module(x), x.relu())
            torch.testing.assert_close(module.run({"x": x})["y"], x.relu())
            assert type(module(x.numpy())) is np.ndarray
            with pytest.raises(InputError, match="input x requires grad"):
                module(x.requires_grad_())


class Eigenvalues(nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return torch.linalg.eigvalsh(x)


class Branch(nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x - 1


class Broken(nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return x @ x


@pytest.mark.parametrize(
    ("model", "example", "kind", "text"),
    [
        (Eigenvalues(), torch.eye(3), ModelError, "it has no ONNX form of the operation aten._linalg_eigh."),
        (Branch(), torch.ones(3), ModelError, "PyTorch cannot export the Branch: GuardOnDataDependent"),
        (
            Broken(),
            torch.ones(2, 3),
            ModelError,
            "PyTorch cannot export the Broken: RuntimeError: a and b must have same",
        ),
        (
            Broken(),
            None,
            UsageError,
            "a Broken is a module of PyTorch, whose ONNX model depends on its inputs: give an",
        ),
        (Broken(), torch.ones(2, 2, device="meta"), UsageError, "a tensor of the example is on meta"),
        (Broken(), {1: torch.ones(2, 2)}, UsageError, "an example that is a mapping has the names of the model's"),
        (Broken(), np.array(["a"]), UsageError, "an array of the example is no tensor"),
        (Broken(), (), ModelError, "PyTorch cannot export the Broken: TypeError"),
    ],
)
def test_mistakes(compile: Any, model: Any, example: Any, kind: type, text: str, capfd: Any) -> None:
    model.train()
    with pytest.raises(kind) as error:
        compile(model, example)
    assert text in str(error.value) and "\n" not in str(error.value) and model.training
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript(compile: Any) -> None:
    with pytest.raises(UsageError, match="is TorchScript, which cannot be exported: give the module"):
        compile(torch.jit.trace(Broken(), torch.ones(2, 2)), torch.ones(2, 2))


def test_an_example_for_another_model(compile: Any) -> None:
    with pytest.raises(UsageError, match="an example is for modules and programs of PyTorch"):
        compile("model.onnx", torch.ones(2))


def test_what_an_example_says() -> None:
    """Integers and masks are measured with, and place holders are not."""

    class Masked(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, mask: Any, ids: Any) -> Any:
            return (x + mask).sum() + ids

    mask = torch.tensor([0.0, -torch.inf])
    found = from_torch(Masked(), (torch.zeros(2), mask, torch.ones(2, dtype=torch.int64)))
    assert found is not None
    assert {*found.inputs} == {"mask", "ids"} and found.shapes == {}
    assert from_torch(object()) is None
