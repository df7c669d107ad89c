"""``Tunnel``: a translated pipeline as an estimator of scikit-learn."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils.metaestimators import available_if

from collage.core.library_text import library_text
from collage.errors import InputError, ModelError, UsageError, unknown_names
from collage.windtunnel import files
from collage.windtunnel.columns import Column
from collage.windtunnel.compare import check_equal
from collage.windtunnel.data import Reader, Rows, Source, Table, check_classes, sample
from collage.windtunnel.export import export
from collage.windtunnel.front import Cache, Front
from collage.windtunnel.graph import Translation, translate_graph
from collage.windtunnel.heads import Head
from collage.windtunnel.modules.part import Network, Tensor
from collage.windtunnel.modules.trees import Forest
from collage.windtunnel.tune import Epoch, Settings, evaluate, soften, tune

log = logging.getLogger(__name__)

SAMPLE = 1 << 16
"""Training rows from which soft trees take their thresholds and spreads."""


def translate(pipeline: Any, *, front: Collection[str] = (), cache: str | Path | None = None) -> Tunnel:
    """A fitted pipeline or estimator as a network that predicts the same.

    ``front`` has the places of operators that scikit-learn goes on running, such as ``"pre.num"``; imputers and
    tokenisers do so by themselves. Their outputs are kept in memory, or in the folder ``cache``. Raises ModelError for
    a pipeline that is not fitted, and for an operator without a converter behind ones that have one.
    """
    if isinstance(front, str):
        raise UsageError(f"front is a list of places, such as [{front!r}].")
    tunnel = Tunnel(pipeline, front=tuple(front), cache=cache)
    tunnel._take(translate_graph(pipeline, tunnel.front), pipeline)
    return tunnel


def load(path: str | Path, *, trust: bool = False) -> Tunnel:
    """The tunnel that ``Tunnel.save`` has written. Operators in front are programs, which only load with ``trust``."""
    saved = files.load(Path(path), trust)
    tunnel = Tunnel(None, **saved.settings)
    tunnel._take(saved.translation)
    tunnel.history_ = list(saved.history)
    if not saved.is_source:
        tunnel._source = None  # it is not in the file
    return tunnel


def _has(*links: str) -> Callable[[Any], bool]:
    def check(tunnel: Any) -> bool:
        if hasattr(tunnel, "head_"):
            return tunnel.head_.kind == "classifier" and (not links or tunnel.head_.link not in links)
        return hasattr(tunnel.pipeline, "predict_proba" if links else "classes_") or not links

    return check


def _weight_name(pipeline: Any) -> str:
    """The name by which ``fit`` of a pipeline takes the weights of rows for its last estimator."""
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import has_fit_parameter

    places = ""
    while not has_fit_parameter(pipeline, "sample_weight"):
        if isinstance(pipeline, Pipeline):
            name, pipeline = pipeline.steps[-1]
            places += f"{name}__"
        elif hasattr(pipeline, "estimator"):  # a search
            pipeline = pipeline.estimator
        else:
            raise UsageError(f"the {type(pipeline).__name__} takes no sample_weight.")
    return f"{places}sample_weight"


class Tunnel(BaseEstimator):
    """A pipeline and its network. ``fit`` trains the pipeline, translates it and fine-tunes the network.

    The settings, which are explained at ``Settings``, hold for ``fit`` and are the defaults of ``fine_tune``. Until it
    is fine-tuned, the network takes exact routes through trees, and predicts as the pipeline does.
    """

    network_: Network
    columns_: tuple[Column, ...]
    fronts_: tuple[Front, ...]
    head_: Head
    history_: list[Epoch]
    source_score_: float | None
    """The validation score of the pipeline itself, as far as it is known."""

    def __init__(
        self,
        pipeline: Any = None,
        *,
        level: str = "L3",
        scope: str = "whole",
        start: str = "warm",
        epochs: int = 20,
        batch: int = 4096,
        rate: float = 1e-3,
        leaf_rate: float | None = None,
        encoder_rate: float | None = None,
        decay: float = 1e-6,
        dropout: float = 0.0,
        tau: float | tuple[float, float] = 0.1,
        tau_leaf: float = 0.5,
        patience: int = 3,
        metric: str | None = None,
        seed: int = 0,
        memory: int = 2 << 30,
        keep_source: bool = True,
        validation: float = 0.1,
        front: tuple[str, ...] = (),
        cache: str | Path | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.level = level
        self.scope = scope
        self.start = start
        self.epochs = epochs
        self.batch = batch
        self.rate = rate
        self.leaf_rate = leaf_rate
        self.encoder_rate = encoder_rate
        self.decay = decay
        self.dropout = dropout
        self.tau = tau
        self.tau_leaf = tau_leaf
        self.patience = patience
        self.metric = metric
        self.seed = seed
        self.memory = memory
        self.keep_source = keep_source
        self.validation = validation
        self.front = front
        self.cache = cache

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Tunnel:  # noqa: N803
        """Train a clone of the pipeline on rows in memory, translate it, and fine-tune the network.

        A share of the rows, ``validation``, is kept from both for the early stop. The weights of rows are for the
        pipeline's last estimator, and for the fine-tuning.
        """
        from sklearn.model_selection import train_test_split

        if not hasattr(self.pipeline, "fit"):
            raise UsageError("a tunnel is fitted with a pipeline or an estimator of scikit-learn: Tunnel(pipeline).")
        if y is None:
            raise InputError("there is nothing to predict: y is None.")
        by_class = y if is_classifier(self.pipeline) else None
        weights = () if sample_weight is None else (np.asarray(sample_weight),)
        try:
            rows, apart, labels, labels_apart, *weights = train_test_split(
                X, y, *weights, test_size=self.validation, random_state=self.seed, stratify=by_class
            )
        except ValueError as error:
            raise InputError(f"the rows cannot be split for validation: {library_text(error)}") from error
        fitted = clone(self.pipeline).fit(rows, labels, **{_weight_name(self.pipeline): each for each in weights[:1]})
        self._take(translate_graph(fitted, self.front), fitted)
        weight, *of_apart = weights or [None]
        return self.fine_tune(rows, labels, sample_weight=weight, validation=(apart, labels_apart, *of_apart))

    def fine_tune(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        sample_weight: Any = None,
        validation: Any = None,
        progress: Callable[[Epoch], None] | None = None,
        **changes: Any,
    ) -> Tunnel:
        """Train the network, and keep the weights of the epoch that is best on validation rows.

        ``X`` is a frame, an array, or the path or paths of parquet files, whose column ``y`` is the one to predict.
        ``sample_weight`` has the weight of each row in the loss, or is the name of a column of the files.
        ``validation`` is (X, y) or (X, y, weights) of the same kinds, or the share of the rows to hold out. The rows
        that the pipeline was trained on tell little about others: hold out rows that it has not seen. An encoder of
        targets gives training rows values that hold their own target. ``changes`` are settings that differ from the
        tunnel's.

        Ctrl-C ends it with the best weights so far, and before the start is scored it changes nothing. ``history_`` has
        what each epoch gave, and ``source_score_`` what the pipeline itself gives on the validation rows. If no epoch
        is better, the network is that of the pipeline again, unless ``keep_source`` is false.

        Unless ``start`` is ``"current"``, training starts from the pipeline again. On some rows its network is first
        compared with it: ModelError is raised if they differ.
        """
        self._check()
        settings = self._settings(changes)
        head, network = self.head_, self.network_
        if head.kind == "transformer":
            raise UsageError("the pipeline ends with a transformer, and there is nothing to fine-tune it towards.")
        forests = [part for part in network.parts if isinstance(part, Forest)]
        if settings.start == "current" and any(each.settings["level"] != settings.level for each in forests):
            raise UsageError("start='current' goes on at the level of the fine-tuning before.")
        train = Source(Table(X, y, "the training data", sample_weight), self._reader, head, settings.memory)
        share = self.validation if validation is None else validation
        if isinstance(share, (int, float)):
            if not 0 < share < 1:
                raise UsageError(f"validation is a share of the rows between 0 and 1, and not {share}.")
            valid = train.hold_out(float(share), settings.seed)
        else:
            if not isinstance(share, (tuple, list)) or len(share) not in (2, 3):
                raise UsageError("validation is (X, y), (X, y, weights), or the share of the rows to hold out.")
            rows, labels, *of_apart = share
            table = Table(rows, labels, "the validation data", *of_apart)
            valid = Source(table, self._reader, head, settings.memory)
        check_classes(torch.cat([part().y for part in valid.parts]), head, valid._what)
        drawn = sample(train.parts, SAMPLE, settings.seed)
        check_classes(drawn.y, head, "the training data")
        if head.kind == "classifier":
            head = head.weighted(torch.bincount(drawn.y, minlength=len(head.classes)))
        source_score = self.source_score_
        if settings.start != "current":
            network = self._fresh()
            if self._fitted is not None:
                check_equal(self._fitted, network, head, self._reader, train.frame())
            source_score = evaluate(network, head, valid.parts, settings.metric)
            soften(network, drawn, settings.level, settings.taus[0], settings.tau_leaf)
        history = tune(network, head, train.parts, valid.parts, settings, progress)
        self.network_, self._is_source, self.history_, self.source_score_ = network, False, history, source_score
        best = max(each.score for each in history)
        if source_score is not None and best <= source_score and self._source is not None:
            kept = "; it is kept" if settings.keep_source else ""
            text = "no epoch is better than the pipeline itself on the validation rows: %.5f, and %.5f%s"
            log.warning(text, best, source_score, kept)
            if settings.keep_source:
                self.network_, self._is_source = self._fresh(), True
        return self

    def soften(self, X: Any, **changes: Any) -> Tunnel:  # noqa: N803
        """The start of a fine-tuning, without training: soft trees, from training rows ``X``."""
        self._check()
        settings = self._settings(changes)
        network = self._fresh()
        numbers, codes = self._reader.inputs(X)
        if not len(numbers):
            raise InputError("there are no rows to start soft trees from.")
        chosen = torch.from_numpy(np.random.default_rng(settings.seed).permutation(len(numbers))[:SAMPLE])
        rows = Rows(numbers[chosen], codes[chosen], chosen, torch.ones(len(chosen)))
        soften(network, rows, settings.level, settings.taus[0], settings.tau_leaf)
        self.network_, self._is_source, self.history_ = network, False, []
        return self

    def scores(self, X: Any) -> Tensor:  # noqa: N803
        """What the network gives for rows, [rows, width], before any link."""
        self._check()
        numbers, codes = self._reader.inputs(X)
        self.network_.eval()
        with torch.no_grad():
            many = [
                self.network_(numbers[start : start + 8192], codes[start : start + 8192])
                for start in range(0, max(len(numbers), 1), 8192)
            ]
        return torch.cat(many)

    def predict(self, X: Any) -> Any:  # noqa: N803
        """Labels, or numbers, [rows]."""
        self._check()
        return self.head_.predict(self.scores(X))

    @available_if(_has("margin"))
    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        """Probabilities of the classes, [rows, classes]."""
        self._check()
        return self.head_.probabilities(self.scores(X)).numpy()

    @available_if(_has())
    def decision_function(self, X: Any) -> Any:  # noqa: N803
        """The scores: [rows] for two classes, else [rows, classes]."""
        found = self.scores(X)
        if found.shape[1] == 2 and len(self.head_.classes) == 2:
            found = found[:, 1:] - found[:, :1]
        return (found[:, 0] if found.shape[1] == 1 else found).numpy()

    @available_if(lambda tunnel: getattr(tunnel, "head_", Head("transformer", "identity")).kind == "transformer")
    def transform(self, X: Any) -> Any:  # noqa: N803
        """The outputs of a pipeline that ends with a transformer, [rows, columns]."""
        return self.scores(X).numpy()

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """The accuracy of a classifier, or the coefficient of determination."""
        self._check()
        from sklearn.metrics import accuracy_score, r2_score

        measure = accuracy_score if self.head_.kind == "classifier" else r2_score
        return float(measure(y, self.predict(X)))

    def save(self, path: str | Path) -> None:
        """Write the network as tensors and JSON. Operators in front are written beside it, with joblib."""
        self._check()
        given = self.get_params(deep=False)
        settings = {name: each for name, each in given.items() if name not in ("pipeline", "cache")}
        try:
            files.save(Path(path), files.Saved(self._translation, settings, self.history_, self._is_source))
        except (OSError, RuntimeError) as error:  # PyTorch's of a folder that is not there
            raise InputError(f"cannot write {path}: {library_text(error)}") from error

    def to_onnx(self, path: str | Path | None = None) -> Any:
        """The ONNX model, also written to ``path``. Raises ModelError if operators stay in front."""
        self._check()
        model = export(self._translation)
        if path is not None:
            try:
                onnx.save(model, str(path))
            except OSError as error:
                raise InputError(f"cannot write {path}: {error.strerror or error}.") from error
        return model

    @property
    def classes_(self) -> Any:
        """The labels of the classes."""
        if not hasattr(self, "head_") or self.head_.kind != "classifier":
            raise AttributeError("it has no classes.")
        return np.asarray(self.head_.classes)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import get_tags

        tags = super().__sklearn_tags__()
        if self.pipeline is not None:
            of = get_tags(self.pipeline)
            tags.estimator_type, tags.classifier_tags, tags.regressor_tags = (
                of.estimator_type,
                of.classifier_tags,
                of.regressor_tags,
            )
            tags.target_tags, tags.input_tags = of.target_tags, of.input_tags
        return tags

    @property
    def _reader(self) -> Reader:
        return Reader(self.columns_, self.fronts_, self.n_features_in_, self._cache, *self._row_rules)

    @property
    def _translation(self) -> Translation:
        names = tuple(map(str, getattr(self, "feature_names_in_", ())))
        return Translation(
            self.network_, self.columns_, self.fronts_, self.head_, self.n_features_in_, names, *self._row_rules
        )

    def _take(self, found: Translation, fitted: Any = None) -> None:
        """Keep a translation, the pipeline that it is from, and what is needed to start from it again."""
        self._fitted = fitted
        self.network_, self.columns_, self.fronts_, self.head_ = found.network, found.columns, found.fronts, found.head
        self.n_features_in_, self._row_rules = found.n_features, (found.unstored, found.by_name)
        if found.names:
            self.feature_names_in_ = np.array(found.names, object)
        self._cache = Cache(None if self.cache is None else Path(self.cache))
        self._source: Network | None = copy.deepcopy(found.network)
        self._is_source = True
        self.history_, self.source_score_ = [], None

    def _fresh(self) -> Network:
        """A copy of the network as it was translated."""
        if self._source is None:
            raise UsageError("a tunnel that was loaded after a fine-tuning goes on with start='current'.")
        return copy.deepcopy(self._source)

    def _settings(self, changes: dict[str, Any]) -> Settings:
        names = [each.name for each in fields(Settings)]
        if unknown := set(changes) - set(names):
            raise unknown_names("settings", unknown, names)
        return Settings(**({name: getattr(self, name) for name in names} | changes))

    def _check(self) -> None:
        if not hasattr(self, "network_"):
            raise ModelError("the tunnel is not fitted yet: call its fit, or translate a fitted pipeline.")
