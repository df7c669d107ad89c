"""The ensembles and pipelines of ``scripts/bench trees``, and the peers that run them."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import catboost
import joblib
import lightgbm
import numpy as np
import onnxruntime
import skl2onnx
import tl2cgen
import treelite
import xgboost
from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes as output_shapes
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_copy
from scripts.lib import say

LIGHTGBM, XGBOOST, CATBOOST, FOREST, SKLEARN = "lightgbm", "xgboost", "catboost", "forest", "sklearn"
_INPUT, _NUMBERS, _CATEGORIES, _LEVELS = "features", slice(0, 20), slice(20, 25), 12
_TYPES = {"f": FloatTensorType, "i": Int64TensorType, "O": StringTensorType}
Feed: TypeAlias = "Mapping[str, Array]"
Call: TypeAlias = "Callable[[], object]"
Calls: TypeAlias = "tuple[Sequence[Call], Callable[[], Any]]"
"""A call for each feed, and a function that gives the first feed's scores after the first call has run."""
Contender: TypeAlias = "Callable[[Sequence[Feed]], Calls]"


@dataclass(frozen=True)
class Spec:
    """An ensemble to train: ``trees`` for each class if there are several, and limits of leaves and depth.

    With ``categories``, "string" or "int", it is a pipeline of imputer, scaler, one-hot encoder and the ensemble.
    """

    group: str
    library: str
    trees: int
    leaves: int = 0
    depth: int = 0
    features: int = 100
    classes: int = 2
    categories: str = ""

    @property
    def name(self) -> str:
        """The library, the size, and what differs from the usual."""
        size = f"{self.library} {self.trees} x {self.leaves or f'depth {self.depth}'}"
        more = (self.features != 100, f"{self.features} features"), (self.classes > 2, f"{self.classes} classes")
        return ", ".join([size, *(text for named, text in more if named), *[self.categories] * bool(self.categories)])


_SIZES = [(trees, leaves) for trees in (50, 300, 1000) for leaves in (15, 31, 127)]
SIZES = [Spec(library, library, *size) for library in (LIGHTGBM, XGBOOST) for size in _SIZES]
SIZES += [Spec(CATBOOST, CATBOOST, 300, depth=6)]
SHAPES = [
    *(Spec("shapes", LIGHTGBM, 300, 31, features=features) for features in (5, 500, 5000)),
    *(Spec("shapes", XGBOOST, trees, depth=depth) for trees, depth in ((300, 3), (300, 6), (100, 10))),
    *(Spec("shapes", FOREST, 100, depth=depth, classes=classes) for depth, classes in ((30, 2), (10, 10))),
    *(Spec("shapes", LIGHTGBM, trees, 31, classes=classes) for trees, classes in ((300, 3), (100, 10), (30, 100))),
]
PIPELINES = [
    Spec("pipeline", library, 300, leaves, depth, categories=categories)
    for library, leaves, depth in ((LIGHTGBM, 31, 0), (SKLEARN, 0, 4))
    for categories in ("string", "int")
]


def feed(spec: Spec, rows: int, seed: int) -> Feed:
    """The model's inputs: normally distributed, and in a pipeline with a tenth of NaN, and columns of categories.

    Numbers are multiples of 1/1024, so that exports to float32 keep the sides of thresholds in float64, which lie half
    way between two numbers.
    """
    random = np.random.default_rng((seed, rows))
    shape = rows, _NUMBERS.stop if spec.categories else spec.features
    numbers: Any = np.round(random.standard_normal(shape, np.float32) * 1024) / 1024
    if not spec.categories:
        return {_INPUT: aligned_copy(numbers)}
    numbers[random.random(numbers.shape) < 0.1] = np.nan
    codes = random.integers(_LEVELS, size=(rows, _CATEGORIES.stop - _CATEGORIES.start))
    words: Any = np.array([f"level {code}" for code in range(_LEVELS)], object)
    categories = words[codes] if spec.categories == "string" else aligned_copy(codes)
    return {"numbers": aligned_copy(numbers), "categories": categories}


def trained(spec: Spec, folder: Path) -> tuple[Path, Any]:
    """The ONNX file, and the library's own estimator. Both are in the folder after the first time.

    Labels are noise and steps are small, so that trees are distinct and have all their leaves.
    """
    onnx, own = (folder / f"{re.sub('[ ,]+', '-', spec.name)}.{ending}" for ending in ("onnx", "joblib"))
    if own.exists():
        return onnx, joblib.load(own)
    say(f"training {spec.name}")
    folder.mkdir(parents=True, exist_ok=True)
    inputs = feed(spec, 20_000 if spec.library == FOREST else 4000, 99)
    matrix, *others = inputs.values()
    model = estimator = _estimator(spec)
    if others:
        numbers = make_pipeline(SimpleImputer(), StandardScaler()), _NUMBERS
        categories = OneHotEncoder(handle_unknown="ignore", sparse_output=False), _CATEGORIES
        model = make_pipeline(make_column_transformer(numbers, categories), estimator)
        matrix = np.concatenate([matrix.astype(object), *others], 1)
    model.fit(matrix, np.random.default_rng(0).integers(spec.classes, size=len(matrix)))
    if spec.library == CATBOOST:
        model.save_model(str(onnx), format="onnx")
    else:
        types = [(name, _TYPES[array.dtype.kind]([None, array.shape[1]])) for name, array in inputs.items()]
        more = {"options": {id(estimator): {"zipmap": False}}, "target_opset": {"": 17, "ai.onnx.ml": 3}}
        onnx.write_bytes(skl2onnx.to_onnx(model, initial_types=types, **more).SerializeToString())
    joblib.dump(estimator, own)
    return onnx, estimator


def _estimator(spec: Spec) -> Any:
    for kind, convert in ((lightgbm.LGBMClassifier, convert_lightgbm), (xgboost.XGBClassifier, convert_xgboost)):
        options = {"zipmap": [True, False], "nocl": [True, False]}
        skl2onnx.update_registered_converter(kind, kind.__name__, output_shapes, convert, options=options)
    usual = {"n_estimators": spec.trees, "random_state": 0}
    slow = {**usual, "n_jobs": 1, "learning_rate": 0.02, "subsample": 0.5, "colsample_bytree": 0.3}
    if spec.library == LIGHTGBM:
        more = {"subsample_freq": 1, "min_child_samples": 5, "min_child_weight": 0, "max_bin": 255, "verbose": -1}
        return lightgbm.LGBMClassifier(num_leaves=spec.leaves, **more, **slow)
    if spec.library == XGBOOST:
        grown = {"grow_policy": "lossguide" if spec.leaves else "depthwise", "min_child_weight": 0}
        return xgboost.XGBClassifier(max_leaves=spec.leaves, max_depth=spec.depth, **grown, **slow)
    if spec.library == CATBOOST:  # a regressor: a classifier's ONNX file ends with a ZipMap
        more = {"verbose": False, "allow_writing_files": False, "thread_count": 2}
        return catboost.CatBoostRegressor(depth=spec.depth, learning_rate=0.02, **more, **usual)
    if spec.library == FOREST:
        return RandomForestClassifier(max_depth=spec.depth, n_jobs=2, **usual)
    return GradientBoostingClassifier(max_depth=spec.depth, subsample=0.5, **usual)


def peers(spec: Spec, onnx: Path, own: Any, threads: int, *, generated: bool) -> dict[str, Contender]:
    """The peers by name, ONNX Runtime first, and tl2cgen only if ``generated``."""
    found = {"onnxruntime": _onnxruntime(onnx, threads), "onnxruntime, 1 thread": _onnxruntime(onnx, 1)}
    if spec.categories:
        return found
    if spec.library == CATBOOST:
        predict = partial(own.predict, thread_count=threads)
        return {**found, CATBOOST: _on_matrices(predict), "catboost on pools": _on_matrices(predict, catboost.Pool)}
    if spec.library == LIGHTGBM:
        found["lightgbm C"] = partial(_lightgbm_c, own.booster_, threads)
        found[LIGHTGBM] = _on_matrices(partial(own.booster_.predict, num_threads=threads))
        model = treelite.frontend.from_lightgbm(own.booster_)
    elif spec.library == XGBOOST:
        own.get_booster().set_param({"nthread": threads})
        found[XGBOOST] = _on_matrices(partial(own.get_booster().inplace_predict, validate_features=False))
        model = treelite.frontend.from_xgboost(own.get_booster())
    else:
        found["scikit-learn"] = _on_matrices(own.set_params(n_jobs=threads).predict_proba)
        model = treelite.sklearn.import_model(own)
    found["treelite"] = _on_matrices(partial(treelite.gtil.predict, model, nthread=threads))
    if generated and spec.leaves and (spec.trees, spec.leaves) != (1000, 127):
        found |= {f"tl2cgen, quantize {each}": _tl2cgen(model, onnx, threads, each) for each in (0, 1)}
    return found


def _on_matrices(call: Callable[..., object], own: Callable[[Any], Any] = np.asarray) -> Contender:
    """A call that takes a matrix, before the race made the library's ``own``, and returns the scores."""

    def bind(feeds: Sequence[Feed]) -> Calls:
        every = [partial(call, own(each[_INPUT])) for each in feeds]
        return every, every[0]

    return bind


def _onnxruntime(file: Path, threads: int) -> Contender:
    """ONNX Runtime, at one row of numbers with bound inputs and outputs, unless their ranks are declared wrong."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def bind(feeds: Sequence[Feed]) -> Calls:
        once = zip(session.get_outputs(), session.run(None, feeds[0]), strict=True)
        wrong = any(len(output.shape) != array.ndim for output, array in once)  # CatBoost's
        if wrong or any(len(array) > 1 or array.dtype == object for array in feeds[0].values()):
            every = [partial(session.run, None, each) for each in feeds]
            return every, lambda: every[0]()[-1]
        bindings = [session.io_binding() for _ in feeds]
        for binding, each in zip(bindings, feeds, strict=True):
            for name, array in each.items():
                binding.bind_cpu_input(name, array)
            for output in session.get_outputs():
                binding.bind_output(output.name)
        every = [partial(session.run_with_iobinding, binding) for binding in bindings]
        return every, lambda: bindings[0].copy_outputs_to_cpu()[-1]

    return bind


def _lightgbm_c(booster: Any, threads: int, feeds: Sequence[Feed]) -> Calls:
    """LightGBM through its C interface, at one row by the fast call of a prepared configuration."""
    library = lightgbm.basic._LIB
    rows, columns = feeds[0][_INPUT].shape
    scores: Any = np.full((rows, booster.num_model_per_iteration()), np.nan)
    ends: Any = ctypes.byref(ctypes.c_int64()), scores.ctypes.data_as(ctypes.c_void_p)
    kind = 0, 0, -1  # probabilities of all trees
    if rows == 1:
        config = ctypes.c_void_p()
        given = *kind, 0, columns, b"num_threads=1", ctypes.byref(config)
        library.LGBM_BoosterPredictForMatSingleRowFastInit(booster._handle, *given)
        call, rest = partial(library.LGBM_BoosterPredictForMatSingleRowFast, config), ends
    else:
        call = partial(library.LGBM_BoosterPredictForMat, booster._handle)
        rest = 0, rows, columns, 1, *kind, f"num_threads={threads}".encode(), *ends  # 0: float32, 1: row-major
    places: Any = [each[_INPUT].ctypes.data_as(ctypes.c_void_p) for each in feeds]  # which keep the arrays
    return [partial(call, place, *rest) for place in places], lambda: scores


def _tl2cgen(model: Any, onnx: Path, threads: int, quantize: int) -> Contender:
    """The library that tl2cgen and gcc make beside the ONNX file, on matrices of its own."""
    built = onnx.with_suffix(f".{quantize}.so")
    if not built.exists():
        say(f"tl2cgen and gcc make {built}")
        options = {"quantize": quantize, "parallel_comp": 32}
        with redirect_stdout(sys.stderr):
            tl2cgen.export_lib(model, "gcc", built, options, nthread=threads, options=["-O3"])
    return _on_matrices(tl2cgen.Predictor(built, nthread=threads).predict, tl2cgen.DMatrix)
