"""Programs as PyTorch's documentation writes them: only the backend's name, or an import, is Collage's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import collage
from collage.torch_backend import backend

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn
F = torch.nn.functional


@pytest.fixture(autouse=True)
def _all_compiled(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No subgraph stays PyTorch's."""
    with caplog.at_level(logging.WARNING, backend.__name__):
        yield
    assert [each.message for each in caplog.records if each.name == backend.__name__] == []


def entries(folder: Path) -> int:
    """How many subgraphs are in the cache."""
    return len([*folder.glob("*.collage")])


def test_a_function(cache: Path) -> None:
    """Of the tutorial on torch.compile."""

    def foo(x: Any, y: Any) -> Any:
        a = torch.sin(x)
        b = torch.cos(y)
        return a + b

    opt_foo1 = torch.compile(foo, backend="collage")
    x, y = torch.randn(10, 10), torch.randn(10, 10)
    for _ in range(2):
        torch.testing.assert_close(opt_foo1(x, y), foo(x, y))

    @torch.compile(backend="collage")
    def opt_foo2(x: Any, y: Any) -> Any:
        a = torch.sin(x)
        b = torch.cos(y)
        return a - b

    for _ in range(2):
        torch.testing.assert_close(opt_foo2(x, y), torch.sin(x) - torch.cos(y))
    assert entries(cache) == 2


class BasicBlock(nn.Module):  # type: ignore[misc,name-defined]
    """As torchvision has it."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: Any = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: Any) -> Any:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):  # type: ignore[misc,name-defined]
    """A narrow ResNet of torchvision's."""

    def __init__(self, layers: tuple[int, ...], num_classes: int = 10) -> None:
        super().__init__()
        self.inplanes = 16
        self.conv1 = nn.Conv2d(3, self.inplanes, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(self.inplanes)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(16, layers[0])
        self.layer2 = self._make_layer(32, layers[1], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, num_classes)

    def _make_layer(self, planes: int, blocks: int, stride: int = 1) -> Any:
        downsample = None
        if stride != 1:
            downsample = nn.Sequential(nn.Conv2d(self.inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))
        layers = [BasicBlock(self.inplanes, planes, stride, downsample)]
        self.inplanes = planes
        layers.extend(BasicBlock(planes, planes) for _ in range(1, blocks))
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)


def test_a_resnet(cache: Path) -> None:
    """Of the tutorial on torch.compile, which compares eager and compiled modules."""
    model = ResNet((1, 2)).eval()
    inp = torch.randn(2, 3, 64, 64)

    model_opt = torch.compile(model, backend="collage")

    with torch.no_grad():
        for _ in range(3):
            inp = torch.randn(2, 3, 64, 64)
            torch.testing.assert_close(model_opt(inp), model(inp), rtol=1e-3, atol=1e-4)
    assert entries(cache) == 1


def test_a_program() -> None:
    """Of the documentation of torch.export, which runs the program by ``exported_program.module()``."""

    class Mod(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            a = torch.sin(x)
            b = torch.cos(y)
            return a + b

    example_args = (torch.randn(10, 10), torch.randn(10, 10))

    exported_program = torch.export.export(Mod(), args=example_args)
    module = collage.compile(exported_program)
    torch.testing.assert_close(module(*example_args), exported_program.module()(*example_args))


class NeuralNetwork(nn.Module):  # type: ignore[misc,name-defined]
    """Of the quickstart."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(
            nn.Linear(28 * 28, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, x: Any) -> Any:
        x = self.flatten(x)
        logits = self.linear_relu_stack(x)
        return logits


def test_the_test_loop_of_the_quickstart(cache: Path) -> None:
    """Of the quickstart. Its images are random numbers here."""
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(torch.rand(256, 1, 28, 28), torch.randint(10, (256,)))
    dataloader = DataLoader(dataset, batch_size=64)
    plain = NeuralNetwork()

    def test(dataloader: Any, model: Any, loss_fn: Any) -> tuple[float, float]:
        size = len(dataloader.dataset)
        num_batches = len(dataloader)
        model.eval()
        test_loss, correct = 0.0, 0.0
        with torch.no_grad():
            for X, y in dataloader:  # noqa: N806
                pred = model(X)
                test_loss += loss_fn(pred, y).item()
                correct += (pred.argmax(1) == y).type(torch.float).sum().item()
        return test_loss / num_batches, correct / size

    model = torch.compile(plain, backend="collage")
    assert test(dataloader, model, nn.CrossEntropyLoss()) == pytest.approx(
        test(dataloader, plain, nn.CrossEntropyLoss()), rel=1e-5
    )
    assert entries(cache) == 1
