"""Blocks of exported networks: they compute what the network does, and what cannot be divided is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from collage.errors import CollageError, UsageError
from collage.graphpipe.coarsen import coarsened
from collage.graphpipe.plan import Plan, Stage
from collage.graphpipe.profile import edges, profiled
from collage.graphpipe.runtime import train
from collage.graphpipe.trace import Traced, TraceError, trace
from collage.graphpipe.training import Training, load_training
from tests.helpers.graphpipe import diamond

torch = pytest.importorskip("torch")
nn = torch.nn


def mean_of(layer: Any) -> Any:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return self.layer(x).square().mean()

    return Mean()


def run_blocks(traced: Traced, inputs: Any) -> Any:
    """The sum of all losses of the blocks, each run by itself on detached inputs."""
    known: dict[str, Any] = {}
    total = 0.0
    for at in range(len(traced.blocks)):
        piece = traced.piece([at])
        reads = [known[name].detach() for name in piece.reads]
        found = piece.module(len(inputs[0]), *(inputs[each] for each in piece.data), *reads)
        known |= dict(zip(piece.gives, found, strict=False))
        total += sum(float(each.detach()) for each in found[len(piece.gives) :])
    return total


def test_blocks_compute_what_the_network_does() -> None:
    training = diamond()
    traced = training.trace()
    for samples in (1, 7):
        inputs = training.inputs(0, samples)
        assert run_blocks(traced, inputs) == pytest.approx(float(training.module(*inputs).detach()), rel=1e-12)
    assert traced.blocks == diamond().trace().blocks
    weights = [{name for name, _ in traced.piece([at]).module.named_parameters()} for at in range(len(traced.blocks))]
    assert sum(map(len, weights)) == len(set.union(*weights)) == len([*training.module.parameters()])


def test_attention_is_cut_only_where_samples_are_on_the_first_axis() -> None:
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)]
    module = mean_of(nn.Sequential(nn.Linear(8, 8), *layers))
    inputs = (torch.randn(4, 5, 8),)
    traced = trace(module, inputs)
    assert len(traced.blocks) > 4
    assert run_blocks(traced, inputs) == pytest.approx(float(module(*inputs).detach()), rel=1e-5)
    assert all(value.shape[0] in (2, 5) for value in traced.values.values())


def test_a_shared_weight_is_in_one_block() -> None:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    traced = trace(mean_of(nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), first)), (torch.randn(4, 6),))
    homes = [at for at in range(len(traced.blocks)) for _ in traced.piece([at]).module.parameters()]
    assert len({*homes}) == 1


class Asks(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean() if x.sum() > 0 else (2 * x).mean()


class Fixed(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.view(4, 6).mean()


class Across(nn.Module):
    def forward(self, x: Any) -> Any:
        return (x - x.mean(0)).square().mean()


class Variance(nn.Module):
    """Infinite for a sample alone."""

    def forward(self, x: Any) -> Any:
        return x.square().sum() / torch.full((1,), x.shape[0] - 1.0)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (mean_of(nn.BatchNorm1d(6)), r"layer is a BatchNorm .*depend on the micro-batch"),
        (Asks(), r"does not export: line \d+ of .*test_trace.py, `return x.mean\(\) if x.sum\(\) > 0"),
        (Fixed(), r"a size in it is that of the example, 4 samples: write -1"),
        (Across(), "has to give the mean over its samples"),
        (Variance(), "the mean of those of each alone is inf"),
    ],
)
def test_what_cannot_be_divided_is_refused(module: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message) as error:
        trace(module, (torch.randn(4, 6),))
    assert len(str(error.value).splitlines()) == 1


def test_a_batch_norm_in_evaluation_mode_is_taken() -> None:
    assert trace(mean_of(nn.BatchNorm1d(6)).eval(), (torch.randn(4, 6),)).blocks


def test_a_profile_has_all_edges_and_weights() -> None:
    training = diamond("float32")
    traced = training.trace()
    nbytes = sum(each.nbytes for each in training.module.parameters())
    graph = profiled(training, traced, "diamond", largest=4, runs=1)
    assert graph.edges == edges(traced)
    assert len(graph.blocks[0].forward_s) == 3
    assert sum(each.weight_bytes for each in graph.blocks) == nbytes
    assert graph.state_factor == pytest.approx(4.0)  # weights, gradients, and two moments of AdamW
    assert all(each.activation_bytes > 0 for each in graph.blocks if each.name.startswith(("left", "right")))


def test_many_nodes_become_few_blocks_without_circles() -> None:
    count = 300
    order = [f"n{at}" for at in range(count)]
    arcs = [(f"n{at}", f"n{at + 1}") for at in range(count - 1)]
    arcs += [(f"n{at}", f"n{at + 3}") for at in range(0, count - 3, 3)]
    blocks = coarsened(order, arcs, [("n10", "n20")], dict.fromkeys(order, 1.0), most=16)
    home = {name: at for at, block in enumerate(blocks) for name in block}
    assert len(blocks) <= 16
    assert all(home[one] <= home[other] for one, other in arcs)
    assert len({home[f"n{at}"] for at in range(10, 21)}) == 1
    assert max(map(len, blocks)) < count / 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.txt:build", "write it as MODEL.py:function"),
        ("none.py:build", "there is no file none.py"),
        ("model.py:none", "has no function none"),
        ("model.py:wrong", r"has to return \(module, batch\)"),
        ("model.py:fails", "ZeroDivisionError"),
    ],
)
def test_a_wrong_function_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    (tmp_path / "model.py").write_text("def wrong(): return 1\ndef fails(): return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CollageError, match=message):
        load_training(text)


def test_a_batch_of_another_size_is_refused() -> None:
    training = Training(mean_of(nn.Linear(6, 6)), lambda step, samples: (torch.randn(samples + 1, 6),))
    with pytest.raises(CollageError, match="has to be tensors with 4 samples"):
        training.trace()


class Padded(nn.Module):
    """A language model whose loss leaves out the tokens 0, of which samples have different numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, words: Any, y: Any) -> Any:
        scores = self.head(self.words(words)).reshape(-1, 50)
        return nn.functional.cross_entropy(scores, y.reshape(-1), ignore_index=0)


class Extra(nn.Module):
    def __init__(self, detach: bool) -> None:
        super().__init__()
        self.line, self.detach = nn.Linear(6, 3), detach

    def forward(self, x: Any) -> Any:
        scores = self.line(x)
        return scores.square().mean(), scores.detach() if self.detach else scores


def test_losses_that_are_none_are_refused() -> None:
    torch.manual_seed(0)
    y = torch.tensor([[1, 2, 3, 4], [1, 0, 0, 0], [1, 2, 0, 0], [5, 6, 7, 0]])
    with pytest.raises(TraceError, match="has to give the mean over its samples"):
        trace(Padded(), (torch.randint(0, 50, (4, 4)), y))
    rows = (torch.randn(4, 6),)
    with pytest.raises(TraceError, match=r"has the shape \[4, 3\], and would be a loss"):
        trace(Extra(False), rows)
    assert trace(Extra(True), rows).blocks
    with pytest.raises(TraceError, match="no output of the module has a gradient"):
        trace(mean_of(nn.Linear(6, 6)).requires_grad_(False), rows)


class Contrast(nn.Module):
    """A loss between the samples of a batch."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        found = self.layer(x).flatten(1)
        return nn.functional.cross_entropy(found @ found.T / 100, torch.arange(x.shape[0]))


class Drops(nn.Module):
    """Samples are dropped at random, as in stochastic depth, or by noise that cannot be switched off."""

    def __init__(self, noise: bool) -> None:
        super().__init__()
        self.line, self.noise = nn.Linear(6, 6), noise

    def forward(self, x: Any) -> Any:
        found = self.line(x)
        kept = torch.rand_like(found[:, :1]) if self.noise else found.new_empty(x.shape[0], 1).bernoulli_(0.9)
        return (found * kept).square().mean()


class First(nn.Module):
    """A recurrent layer without its state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(6, 6, 2, dropout=0.3, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


RANDOM = {
    "dropout": lambda: nn.Dropout(0.3),
    "no dropout": lambda: nn.Dropout(0.0),
    "channels": lambda: nn.Dropout2d(0.3),
    "alpha": lambda: nn.AlphaDropout(0.3),
    "slopes": lambda: nn.RReLU(),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True),
    "recurrent": lambda: First(),
}


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("name", RANDOM)
def test_a_network_with_dropout_is_checked_without_it(name: str, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 5, 3, 3) if name == "channels" else torch.randn(4, 5, 6)
    width = x.shape[-1]
    assert trace(mean_of(nn.Sequential(nn.Linear(width, width), RANDOM[name]())), (x,)).blocks
    with pytest.raises(TraceError, match="has to give the mean over its samples"):
        trace(Contrast(nn.Sequential(nn.Linear(width, width), RANDOM[name]())), (x,))
    assert not _warnings(caplog)


def test_a_network_that_stays_random_is_not_checked_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert trace(Drops(False), (torch.randn(4, 6),)).blocks
    assert not _warnings(caplog)
    assert trace(Drops(True), (torch.randn(4, 6),)).blocks
    assert _warnings(caplog) == [
        "whether the loss is the mean over the samples is not checked, since the network is random by rand_like."
    ]


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 50)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any, y: Any) -> Any:
        self.count.add_(1.0)
        return nn.functional.cross_entropy(self.line(x), y, ignore_index=0)


def labelled(late: Callable[[int, int, Any], Any]) -> Training:
    """Labels are above 0, but for those that ``late`` sets."""

    def batch(step: int, samples: int) -> tuple[Any, ...]:
        random = torch.Generator().manual_seed(step)
        return torch.randn(samples, 6, generator=random), late(step, samples, torch.ones(samples, dtype=torch.long))

    return Training(Counts(), batch)


def test_samples_of_later_steps_and_of_the_whole_mini_batch_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    rare = labelled(lambda step, samples, y: y.index_fill(0, torch.tensor([3]), int(step != 2)))
    traced = rare.trace()
    with pytest.raises(TraceError, match=r"the loss of 2 samples is .* of those of each alone is nan"):
        profiled(rare, traced, "rare", largest=1, runs=1)
    padded = labelled(lambda step, samples, y: y.index_fill(0, torch.tensor([samples - 1]), int(samples < 32)))
    traced = padded.trace()
    count = float(traced.module.count)
    padded.check_samples(traced)
    stages = (Stage((*range(len(traced.blocks)),), 8, (0, 1), 1, 8),)
    padded.check_micro_batches(traced, Plan(32, stages, ()), 1, 2)  # not the last one
    padded.check_micro_batches(traced, Plan(32, (Stage(stages[0].blocks, 32, (0,), 1, 32),), ()), 0, 1)  # the only one
    assert traced.module.count == count
    with pytest.raises(TraceError, match=r"the loss of 8 samples is .* of those of each 4 of them is"):
        train(padded, Plan(32, stages, ()), 1, 5.0)
    uneven = labelled(lambda step, samples, y: y * (torch.arange(samples) > 0))
    errors = []
    for turn in (0, 1):
        with pytest.raises(TraceError) as error:
            uneven.check_micro_batches(traced, Plan(32, stages, ()), turn, 2)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_a_batch_that_is_another_one_each_time_is_refused() -> None:
    torch.manual_seed(0)
    training = Training(mean_of(nn.Linear(6, 6)), lambda step, samples: (torch.randn(samples, 6),))
    with pytest.raises(UsageError, match=r"batch\(0, 4\) gives another tensor 0 when it is called again"):
        training.trace()
    same = Training(mean_of(nn.Linear(6, 6)), lambda step, samples: (torch.full((samples, 6), float("nan")),))
    assert same.trace().blocks


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda parameters: None, "gives a NoneType: return a torch optimizer"),
        (lambda parameters: torch.optim.LBFGS(parameters), "gives a LBFGS"),
        (lambda parameters: torch.optim.Adam(parameters, lr=-1), "cannot be made: ValueError"),
    ],
)
def test_optimizers_that_are_none_are_refused(optimizer: Any, message: str) -> None:
    training = Training(nn.Linear(6, 6), lambda step, samples: (torch.randn(samples, 6),), optimizer)
    with pytest.raises(CollageError, match=message):
        training.optimizer_of([*training.module.parameters()])
