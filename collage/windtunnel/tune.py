"""Fine-tuning: the training of a translated network, and the rows of its best epoch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch

from collage.errors import UsageError, unknown_names
from collage.windtunnel.data import Part as RowsPart
from collage.windtunnel.data import Rows, batches
from collage.windtunnel.heads import Head
from collage.windtunnel.modules.encode import Embed, Lookup
from collage.windtunnel.modules.part import Network, Part, Tensor
from collage.windtunnel.modules.trees import Forest, Level

log = logging.getLogger(__name__)

LEVELS: tuple[Level, ...] = ("L1", "L2", "L3", "L4")
SCOPES = ("whole", "trees")
STARTS = ("warm", "cold", "current")


@dataclass(frozen=True)
class Settings:
    """How to fine-tune."""

    level: Level = "L3"
    """The parameters of trees to learn."""
    scope: Literal["whole", "trees"] = "whole"
    """``trees``: the encoders and scalers before the trees stay as they are (GBDT2NN)."""
    start: Literal["warm", "cold", "current"] = "warm"
    """From the source pipeline, from random numbers, or from what was fine-tuned before."""
    epochs: int = 20
    batch: int = 4096
    rate: float = 1e-3
    """Adam's rate."""
    leaf_rate: float | None = None
    """For values of leaves. None: ``rate`` times their root mean square, since they are small."""
    encoder_rate: float | None = None
    """For the tables of encoders. None: ``rate``."""
    decay: float = 1e-6
    dropout: float = 0.0
    """Of the nodes of trees; never of leaves."""
    tau: float | tuple[float, float] = 0.1
    """The temperature of nodes, in spreads of their inputs; two of them: from the first epoch to the last one."""
    tau_leaf: float = 0.5
    patience: int = 3
    """Training stops after so many epochs without a better validation."""
    metric: Literal["auc", "loss"] | None = None
    """The validation score. None: the area under the curve for two classes, else the loss."""
    seed: int = 0
    memory: int = 2 << 30
    """Bytes up to which rows are kept as tensors; beyond, each epoch reads them again."""
    keep_source: bool = True
    """Whether the result is the pipeline itself if no epoch has a better validation score."""

    def __post_init__(self) -> None:
        for name, valid in (("level", LEVELS), ("scope", SCOPES), ("start", STARTS), ("metric", ("auc", "loss", None))):
            if getattr(self, name) not in valid:
                raise unknown_names(name, [str(getattr(self, name))], [str(each) for each in valid if each])
        for name, least in (("batch", 1), ("patience", 1), ("epochs", 0), ("seed", 0), ("memory", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise UsageError(f"{name} is a whole number from {least} on, and not {value!r}.")
        taus = list(self.tau) if isinstance(self.tau, (tuple, list)) else [self.tau] * 2
        if len(taus) != 2:
            raise UsageError(f"tau is a number, or the first and the last one, and not {self.tau!r}.")
        rates = [each for each in (self.leaf_rate, self.encoder_rate) if each is not None]
        for each in (self.rate, self.tau_leaf, *taus, *rates):
            if not isinstance(each, Real) or not 0 < float(each) < np.inf:
                raise UsageError(f"rates, tau and tau_leaf are numbers above 0, and {each!r} is none.")
        for name, most in (("dropout", 1.0), ("decay", np.inf)):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < most:
                raise UsageError(f"{name} is a number from 0 on{', below 1' if most == 1 else ''}, and not {value!r}.")

    @property
    def taus(self) -> tuple[float, float]:
        """The temperature of the first and of the last epoch."""
        first, last = self.tau if isinstance(self.tau, (tuple, list)) else (self.tau, self.tau)
        return first, last


@dataclass(frozen=True)
class Epoch:
    """The result of an epoch. Epoch 0 is the start, without a loss on training rows."""

    number: int
    loss: float
    score: float
    """On validation rows: the area under the curve, or the negative loss; higher is better."""
    seconds: float
    """Since the training began."""


def soften(network: Network, rows: Rows, level: Level, tau: float, tau_leaf: float) -> None:
    """Start the soft trees of a translated network from training rows. With L1 trees stay hard."""
    forests = [step for step, part in enumerate(network.parts) if isinstance(part, Forest)]
    for step in forests:
        part = network.parts[step]
        with torch.no_grad():
            (before,) = network.steps[step].inputs
            many = [
                network.until(step, rows.numbers[start : start + 8192], rows.codes[start : start + 8192])[before]
                for start in range(0, len(rows), 8192)
            ]
            part.soften(torch.cat(many), level, tau, tau_leaf)


def learnt_parts(network: Network, scope: str) -> list[Part]:
    """The parts that a scope trains. Of a network without trees, ``trees`` trains the operator at the end."""
    parts = list(network.parts)
    if scope == "whole":
        return parts
    forests = {step for step, part in enumerate(parts) if isinstance(part, Forest)}
    if not forests:
        last = network.steps[-1].path
        return [part for part, step in zip(parts, network.steps, strict=True) if step.path == last]
    return [part for step, part in enumerate(parts) if step in forests or forests & set(network.before(step))]


def tune(
    network: Network,
    head: Head,
    train: Sequence[RowsPart],
    valid: Sequence[RowsPart],
    settings: Settings,
    progress: Callable[[Epoch], None] | None = None,
) -> list[Epoch]:
    """Train until validation stops it, and leave the network with the weights of the best epoch.

    KeyboardInterrupt, also from ``progress``, ends training as a stop does.
    """
    learnt = learnt_parts(network, settings.scope)
    forests = [part for part in network.parts if isinstance(part, Forest)]
    if settings.start == "cold":
        generator = torch.Generator().manual_seed(settings.seed)
        for part in learnt:
            part.randomise(generator)
    for part in network.parts:
        part.requires_grad_(any(part is each for each in learnt))
    # AdamW: Adam divides the decay by its own size if nothing else moves a weight, such as the row of a rare category.
    adam = torch.optim.AdamW(_groups(learnt, settings), settings.rate, weight_decay=settings.decay, fused=True)
    rng = np.random.default_rng(settings.seed)
    history: list[Epoch] = []
    best, kept = -np.inf, _weights(network, forests)

    def ended(number: int, loss: float, started: float) -> None:
        nonlocal best, kept
        score = evaluate(network, head, valid, settings.metric)
        history.append(Epoch(number, loss, score, time.perf_counter() - started))
        if score > best:
            best, kept = score, _weights(network, forests)
        if progress is not None:
            progress(history[-1])

    try:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(settings.seed)
            ended(0, float("nan"), time.perf_counter())
            for number in range(1, settings.epochs + 1):
                for forest in forests:
                    forest.settings |= {"tau": _tau(settings, number), "dropout": settings.dropout}
                started = time.perf_counter()
                loss = _epoch(network, head, adam, batches(train, settings.batch, rng))
                if not np.isfinite(loss):
                    log.warning("the loss of epoch %d is not finite: training ends; a lower rate may help", number)
                    break
                ended(number, loss, started)
                if number - max(history, key=lambda each: each.score).number >= settings.patience:
                    break
    except KeyboardInterrupt:
        if not history:
            raise
        log.warning("fine-tuning was stopped: the best weights so far are kept")
    finally:
        network.eval()
        weights, taus = kept
        network.load_state_dict(weights)
        for forest, tau in zip(forests, taus, strict=True):
            forest.settings |= {"tau": tau, "dropout": 0.0}
    return history


def _epoch(network: Network, head: Head, adam: Any, rows: Any) -> float:
    """The mean loss over the batches of an epoch."""
    network.train()
    total, many = 0.0, 0
    for each in rows:
        adam.zero_grad(set_to_none=True)
        loss = head.loss(network(each.numbers, each.codes), each.y, each.weight)
        loss.backward()
        adam.step()
        total, many = total + float(loss.detach()) * len(each), many + len(each)
        if not np.isfinite(total):
            break
    return total / max(many, 1)


def _tau(settings: Settings, number: int) -> float:
    first, last = settings.taus
    share = (number - 1) / max(settings.epochs - 1, 1)
    return float(first * (last / first) ** share)


def _groups(learnt: Sequence[Part], settings: Settings) -> list[dict[str, Any]]:
    """Parameters with their rates."""
    encoder = settings.rate if settings.encoder_rate is None else settings.encoder_rate
    groups: list[dict[str, Any]] = []
    for part in learnt:
        for name, each in part.named_parameters(recurse=False):
            rate = encoder if isinstance(part, (Embed, Lookup)) else settings.rate
            if isinstance(part, Forest) and name == "values":
                size = float(each.detach()[part.owned].square().mean().sqrt())
                rate = settings.rate * max(size, 1e-6) if settings.leaf_rate is None else settings.leaf_rate
            groups.append({"params": [each], "lr": rate})
    if not groups:
        raise UsageError("there is nothing to learn: the network has no parameters in this scope.")
    return groups


def _weights(network: Network, forests: Sequence[Forest]) -> tuple[dict[str, Tensor], list[float]]:
    state = {name: each.detach().clone() for name, each in network.state_dict().items()}
    return state, [each.settings["tau"] for each in forests]


def evaluate(network: Network, head: Head, parts: Sequence[RowsPart], metric: str | None = None) -> float:
    """The area under the curve of two classes, or the negative mean loss, of weighted rows."""
    network.eval()
    scores, labels, weights = [], [], []
    with torch.no_grad():
        for each in batches(parts, 8192, None):
            scores.append(network(each.numbers, each.codes))
            labels.append(each.y)
            weights.append(each.weight)
    found, y, weight = torch.cat(scores), torch.cat(labels), torch.cat(weights)
    if (metric or ("auc" if len(head.classes) == 2 else "loss")) == "auc":
        if len(head.classes) != 2:
            raise UsageError("the area under the curve is for two classes: give metric='loss'.")
        from sklearn.metrics import roc_auc_score

        line = found[:, 0] if found.shape[1] == 1 else found[:, 1] - found[:, 0]
        return float(roc_auc_score(y.numpy(), line.numpy(), sample_weight=weight.numpy()))
    return -float(head.loss(found, y, weight / weight.mean()))
