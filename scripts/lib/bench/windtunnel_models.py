"""The contenders of ``scripts/bench windtunnel``: the chapter's pipelines, fine-tuned networks, and references."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

from collage.errors import CollageError
from scripts.lib.bench.windtunnel_data import Data, Ints
from scripts.lib.bench.windtunnel_scores import auc

Setting: TypeAlias = Mapping[str, float]
Predict: TypeAlias = "Callable[[Ints], NDArray[np.float64]]"
PREPROCESSINGS, PIPELINES = ("pre1", "pre2", "pre3"), ("pipe1", "pipe2", "pipe3")
VARIANTS: Mapping[str, Mapping[str, str]] = {
    "whole": {"level": "L3"},
    "L1": {"level": "L1"},
    "L2": {"level": "L2"},
    "L3": {"level": "L3"},
    "cold": {"level": "L3", "start": "cold"},
    "gbdt2nn": {"level": "L3", "scope": "trees"},
}
"""What ``fine_tune`` is given."""
REFERENCES = ("lightgbm", "catboost", "tabm")
# The highest first: it needs the fewest epochs, and the seconds that it leaves are for the lower ones.
_HIGH_RATES: Sequence[Setting] = ({"rate": 3e-3}, {"rate": 1e-3}, {"rate": 3e-4})
_RATES: Sequence[Setting] = ({"rate": 1e-3}, {"rate": 5e-4}, {"rate": 3e-4})
"""Of networks with trees: higher rates lower their AUC from the first epoch on."""
_BOOSTING: Sequence[Setting] = ({"rate": 0.05}, {"rate": 0.1}, {"rate": 0.25})
_PENALTIES: Sequence[Setting] = ({"C": 0.01}, {"C": 0.1}, {"C": 1.0})
_MACHINES: Sequence[Setting] = ({"epochs": 1}, {"epochs": 3}, {"epochs": 10})
"""Of the factorisation machine: it soon learns by heart which rows are in which leaf. Its trees have the rate 0.1."""
_TAU, _TAUS, _START_ROWS = 0.1, (1.0, 0.3, 0.1, 0.03, 0.01), 50_000
_TREES, _MOST_TREES, _PATIENCE_TREES = 100, 600, 30
_MEMBERS, _WIDTH, _BLOCKS, _LARGEST_EMBEDDING = 8, 128, 2, 16


@dataclass(frozen=True)
class Task:
    """What a contender is trained on, and with: numbers of rows, and the limits."""

    data: Data
    train: Ints
    validation: Ints
    test: Ints
    seed: int
    threads: int
    leaves: int
    epochs: int
    patience: int
    limit_s: float
    """Seconds that a training has at most, in processor time of a thread: other work on the machine ends none early."""
    show: Callable[[str], None]
    stop: Callable[[], None]
    """Raises KeyboardInterrupt after Ctrl-C, which fine-tuning catches."""

    def late(self, started: float) -> bool:
        """Whether a training is over its limit, which began at this ``process_time``."""
        return time.process_time() - started > self.limit_s * self.threads

    def frame(self, rows: Ints) -> Any:
        """The features of these rows."""
        return self.data.frame.iloc[rows]

    def validated(self, predict: Predict) -> float:
        """The AUC on the validation rows."""
        return auc(predict(self.validation), self.data.labels[self.validation])


@dataclass(frozen=True)
class Trained:
    """A contender after its training."""

    setting: Setting
    predict: Predict
    """The probability of class 1 for each of the rows with these numbers."""
    validation_auc: float
    seconds: float
    epochs: int | None = None
    stopped: str | None = None
    """Why training ended: ``validation``, ``epochs``, ``time`` or ``infinite loss``."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Of a network: the validation AUC of the start and after each epoch, and the seconds of an epoch."""
    pipeline: Any = None

    def to_json(self) -> dict[str, Any]:
        """All but the model itself."""
        found = {"setting": {**self.setting}, "validation_auc": round(self.validation_auc, 5)}
        found |= {"seconds": round(self.seconds, 1), "epochs": self.epochs, "stopped": self.stopped}
        return found | {**self.about}


def settings(pipe: str, variant: str) -> Sequence[Setting]:
    """The settings that validation chooses from: three for every contender."""
    if variant == "source":
        return {"pipe1": _PENALTIES, "pipe2": _BOOSTING, "pipe3": _MACHINES}[pipe]
    if variant in ("lightgbm", "catboost"):
        return _BOOSTING
    return _RATES if pipe in ("pipe2", "pipe3") else _HIGH_RATES


def train_source(task: Task, pre: str, pipe: str, chosen: Sequence[Setting]) -> list[Trained]:
    """The fitted pipeline of scikit-learn with each of the settings."""
    from sklearn.pipeline import Pipeline

    labels = task.data.labels[task.train]
    started = time.perf_counter()
    front = _preprocessing(pre, task.data, task.seed)
    rows = front.fit_transform(task.frame(task.train), labels)  # target encodings of training rows are out of fold
    shared = time.perf_counter() - started
    found = []
    for setting in chosen:
        started = time.perf_counter()
        model = _model(pipe, setting, task).fit(rows, labels)
        whole = Pipeline([("pre", front), ("model", model)])
        if pipe == "pipe3":
            whole = Pipeline([("pre", front), *model.steps])
        predict = _predict(task, whole)
        value = task.validated(predict)
        seconds = shared + time.perf_counter() - started
        found.append(Trained(setting, predict, value, seconds, pipeline=whole))
        task.show(f"{pre} {pipe} source {dict(setting)}: validation AUC {value:.4f}, {seconds:.0f} s")
    return found


def _predict(task: Task, pipeline: Any) -> Predict:
    return lambda rows: np.asarray(pipeline.predict_proba(task.frame(rows)), np.float64)[:, 1]


def _preprocessing(name: str, data: Data, seed: int) -> Any:
    """The chapter's pre-processing; numbers also have their gaps filled, and are scaled."""
    import sklearn
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler, TargetEncoder

    from collage.windtunnel.sources import BinaryEncoder, Buckets, RareCategories, TwoHotEncoder

    folds: dict[str, Any] = {"random_state": seed}  # which scikit-learn 1.9 deprecates, and older ones need
    if Version(sklearn.__version__) >= Version("1.9"):
        folds = {"cv": StratifiedKFold(5, shuffle=True, random_state=seed)}
    categories, numbers = [*data.categories], [*data.numbers]
    scaled = ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers)
    if name == "pre3":
        parts = [scaled]
        for what, columns in (("categories", categories), ("buckets", numbers)):
            for how in ("two-hot", "target"):
                codes = RareCategories(10, drop_fraction=0.01) if what == "categories" else Buckets(32)
                encoder = TwoHotEncoder() if how == "two-hot" else TargetEncoder(target_type="binary", **folds)
                parts.append((f"{what}, {how}", make_pipeline(codes, encoder), columns))
        return ColumnTransformer(parts)
    encoder = BinaryEncoder() if name == "pre1" else TwoHotEncoder()
    return ColumnTransformer([("categories", make_pipeline(RareCategories(25), encoder), categories), scaled])


def _model(pipe: str, setting: Setting, task: Task) -> Any:
    from lightgbm import LGBMClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from collage.windtunnel.sources import FactorizationMachine, LeafEncoder

    if pipe == "pipe1":
        return LogisticRegression(C=setting["C"], max_iter=300)
    trees = LGBMClassifier(
        n_estimators=_TREES,
        num_leaves=task.leaves,
        learning_rate=setting.get("rate", 0.1),
        random_state=task.seed,
        n_jobs=task.threads,
        verbose=-1,
    )
    if pipe == "pipe2":
        return trees
    epochs = int(setting["epochs"])
    machine = FactorizationMachine(epochs=epochs, batch=task.data.batch, validation_fraction=0, seed=task.seed)
    return make_pipeline(LeafEncoder(trees), machine)


def starts(task: Task, pipeline: Any, variant: str) -> list[Setting]:
    """The start of a network against its source on training rows: of the level L3 at several temperatures.

    ``correlation`` is that of the logits, and ``auc_lost`` the source's AUC less that of the start.
    """
    from collage import windtunnel

    rows = task.train[:: -(-len(task.train) // _START_ROWS)]
    frame, truth, network = task.frame(rows), task.data.labels[rows], windtunnel.translate(pipeline)

    def chances(model: Any) -> NDArray[np.float64]:
        return np.asarray(model.predict_proba(frame), np.float64)[:, 1].clip(1e-7, 1 - 1e-7)

    def compared(tau: float) -> Setting:
        given = chances(network.soften(frame, level=VARIANTS[variant]["level"], tau=tau))
        logits = np.stack([np.log(each / (1 - each)) for each in (expected, given)])
        likeness = round(float(np.corrcoef(logits)[0, 1]), 4)
        return {"tau": tau, "correlation": likeness, "auc_lost": round(auc(expected, truth) - auc(given, truth), 4)}

    expected = chances(pipeline)
    return [compared(tau) for tau in (_TAUS if variant == "L3" else (_TAU,))]


def tune(task: Task, pipeline: Any, variant: str, setting: Setting) -> Trained:
    """The network of a source pipeline, fine-tuned until validation, the epochs or the seconds stop it."""
    from collage import windtunnel

    started, used, late = time.perf_counter(), time.process_time(), False

    def watch(*_: Any, **__: Any) -> None:
        nonlocal late
        if task.late(used):
            late = True
            raise KeyboardInterrupt  # ends the training; its best weights are kept

    labels = task.data.labels
    network = windtunnel.translate(pipeline).fine_tune(
        task.frame(task.train),
        labels[task.train],
        validation=(task.frame(task.validation), labels[task.validation]),
        epochs=task.epochs,
        patience=task.patience,
        batch=task.data.batch,
        seed=task.seed,
        progress=watch,
        tau=_TAU,
        keep_source=False,
        **VARIANTS[variant],
        **setting,
    )
    task.stop()
    predict = _predict(task, network)
    value, seconds, history = task.validated(predict), time.perf_counter() - started, network.history_
    epochs, best = history[-1].number, max(history, key=lambda each: each.score).number
    stopped = "time" if late else "validation" if epochs - best >= task.patience else "epochs"
    if stopped == "epochs" and epochs < task.epochs:
        stopped = "infinite loss"
    task.show(f"{variant} {dict(setting)}: validation AUC {value:.4f}, {epochs} epochs, {seconds:.0f} s ({stopped})")
    scores, spans = ([getattr(each, name) for each in history] for name in ("score", "seconds"))
    about = {"history": [round(each, 5) for each in scores], "epoch_s": round(median(spans[1:]), 2) if epochs else None}
    return Trained(setting, predict, value, seconds, epochs, stopped, about)


def train_reference(task: Task, name: str, setting: Setting) -> Trained:
    """A reference with one of the settings, stopped early by validation."""
    started = time.perf_counter()
    predict, epochs, stopped = {"lightgbm": _lightgbm, "catboost": _catboost, "tabm": _tabm}[name](task, setting)
    value, seconds = task.validated(predict), time.perf_counter() - started
    task.show(f"{name} {dict(setting)}: validation AUC {value:.4f}, {epochs} epochs, {seconds:.0f} s ({stopped})")
    return Trained(setting, predict, value, seconds, epochs, stopped)


_Reference: TypeAlias = "tuple[Predict, int, str]"


def _lightgbm(task: Task, setting: Setting) -> _Reference:
    import lightgbm

    frame = task.data.as_categories
    parts = [lightgbm.Dataset(frame.iloc[rows], task.data.labels[rows]) for rows in (task.train, task.validation)]
    about = {"objective": "binary", "metric": "auc", "seed": task.seed, "num_threads": task.threads, "verbose": -1}
    stop = lightgbm.early_stopping(_PATIENCE_TREES, verbose=False)
    about |= {"learning_rate": setting["rate"]}
    model = lightgbm.train(about, parts[0], _MOST_TREES, valid_sets=[parts[1]], callbacks=[stop])
    stopped = "epochs" if model.best_iteration == _MOST_TREES else "validation"
    return lambda rows: np.asarray(model.predict(frame.iloc[rows]), np.float64), int(model.best_iteration), stopped


def _catboost(task: Task, setting: Setting) -> _Reference:
    import catboost

    frame, labels = task.data.frame, task.data.labels
    model = catboost.CatBoostClassifier(
        iterations=_MOST_TREES,
        learning_rate=setting["rate"],
        eval_metric="AUC",
        cat_features=[*task.data.categories],
        random_seed=task.seed,
        thread_count=task.threads,
        allow_writing_files=False,
        verbose=0,
    ).fit(
        frame.iloc[task.train],
        labels[task.train],
        eval_set=(frame.iloc[task.validation], labels[task.validation]),
        early_stopping_rounds=_PATIENCE_TREES,
    )
    best = int(model.get_best_iteration()) + 1
    stopped = "epochs" if best == _MOST_TREES else "validation"
    return lambda rows: np.asarray(model.predict_proba(frame.iloc[rows]), np.float64)[:, 1], best, stopped


def _tabm(task: Task, setting: Setting) -> _Reference:
    """TabM on scaled numbers and embeddings of categories."""
    import torch
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from collage.windtunnel.sources import RareCategories

    try:
        from tabm import TabM
    except ImportError as error:
        raise CollageError("TabM is missing: pip install tabm") from error
    torch.manual_seed(task.seed)
    data = task.data
    codes, scaler = RareCategories(10), make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    codes.fit(data.frame[[*data.categories]].iloc[task.train])
    scaler.fit(data.frame[[*data.numbers]].iloc[task.train])
    numbers = torch.from_numpy(scaler.transform(data.frame[[*data.numbers]]).astype(np.float32))
    numbered = torch.from_numpy(codes.transform(data.frame[[*data.categories]]))
    counts = [len(each) + 1 for each in codes.categories_]
    tables = torch.nn.ModuleList(torch.nn.Embedding(many, min((many + 1) // 2, _LARGEST_EMBEDDING)) for many in counts)
    width = numbers.shape[1] + sum(table.embedding_dim for table in tables)
    network = TabM.make(n_num_features=width, d_out=1, k=_MEMBERS, d_block=_WIDTH, n_blocks=_BLOCKS)

    def forward(rows: Any) -> Any:  # [rows, members]
        parts = [table(numbered[rows, column]) for column, table in enumerate(tables)]
        return network(torch.cat([numbers[rows], *parts], dim=1)).squeeze(-1)

    def predict(rows: Ints) -> NDArray[np.float64]:
        network.eval()
        with torch.no_grad():
            every = [torch.sigmoid(forward(part)).mean(1) for part in torch.from_numpy(rows).split(8192)]
        return np.asarray(torch.cat(every).numpy(), np.float64)

    weights = [*network.parameters(), *tables.parameters()]
    adam = torch.optim.AdamW(weights, lr=setting["rate"], weight_decay=1e-4)
    truth = torch.from_numpy(data.labels.astype(np.float32))
    used, best, kept, waited, epoch = time.process_time(), -1.0, [], 0, 0
    late = False
    while epoch < task.epochs and waited < task.patience and not late:
        network.train()
        for rows in torch.from_numpy(task.train)[torch.randperm(len(task.train))].split(data.batch):
            scores = forward(rows)
            expected = truth[rows, None].expand_as(scores)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, expected)
            adam.zero_grad()
            loss.backward()
            adam.step()
        epoch, waited = epoch + 1, waited + 1
        if (value := task.validated(predict)) > best:
            best, kept, waited = value, [each.detach().clone() for each in weights], 0
        late = task.late(used)
    with torch.no_grad():
        for weight, value in zip(weights, kept, strict=True):
            weight.copy_(value)
    return predict, epoch, "time" if late else "validation" if waited >= task.patience else "epochs"
