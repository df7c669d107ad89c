"""The README and the pages of the documents, and the files that their examples begin with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.byte_tokenizer import SIZE, write_byte_tokenizer
from scripts.lib.decoders.shape import GPT2, NAMED, DecoderShape, small
from tests.helpers.models import make_model

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
IMAGE = np.full((1, 3, 224, 224), 2, np.float32)
"""The value of ``image`` in the examples. Its scores are 1."""
DYNAMIC = ("docs/serving.md",)
"""Pages whose model has open shapes."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str, page: Path = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands(page: Path) -> list[str]:
    """The lines of all blocks ``sh``, without empty ones and comments."""
    lines = [line for block in blocks("sh", page) for line in block.splitlines()]
    return [re.sub(r"\s+# .*", "", line).strip() for line in lines if line.strip() and not line.startswith("#")]


def image_model(*, dynamic: bool = False) -> onnx.ModelProto:
    """Scores of an image: a multiplication by a constant, a relu, and the mean of each channel."""
    nodes = [
        helper.make_node("Mul", ["image", "half"], ["scaled"], "scale"),
        helper.make_node("Relu", ["scaled"], ["positive"], "relu"),
        helper.make_node("GlobalAveragePool", ["positive"], ["scores"], "mean"),
    ]
    shape = ["batch", 3, "height", "width"] if dynamic else [1, 3, 224, 224]
    weights = {"half": np.array(0.5, np.float32)}
    return make_model(nodes, {"image": shape}, {"scores": [shape[0], 3, 1, 1]}, weights)


def _pipeline(folder: Path) -> None:
    """A pipeline of scikit-learn as a file of joblib and as an ONNX model, and the rows it was fitted to."""
    import joblib
    import pandas as pd
    from skl2onnx import to_onnx
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.normal(40, 10, 2000), "city": random.choice(["Oslo", "Kiel"], 2000)})
    late = (frame.age + 10 * (frame.city == "Oslo") + random.normal(0, 8, 2000) > 45).to_numpy()
    prepared = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["city"]))
    made = make_pipeline(prepared, GradientBoostingClassifier(n_estimators=10)).fit(frame, late)
    joblib.dump(made, folder / "pipeline.joblib")
    frame.assign(late=late).to_parquet(folder / "train.parquet")
    numbers = frame[["age"]].to_numpy(np.float32)
    ages = make_pipeline(StandardScaler(), GradientBoostingClassifier(n_estimators=10)).fit(numbers, late)
    (folder / "pipeline.onnx").write_bytes(to_onnx(ages, numbers[:1]).SerializeToString())


def _booster(folder: Path) -> None:
    import lightgbm as lgb

    x = np.random.default_rng(0).normal(size=(500, 10))
    data = lgb.Dataset(x, x[:, 0] > 0, params={"verbose": -1})
    lgb.train({"objective": "binary", "verbose": -1}, data, 20).save_model(folder / "model.txt")


def _decoders(folder: Path) -> None:
    for name in ("decoder.onnx", "gpt2.onnx"):
        onnx.save_model(decoder(small(NAMED["gpt2_124m"], 4)), str(folder / name))


def _exported(folder: Path) -> None:
    """A folder as optimum-onnx writes one."""
    (folder / "gpt2").mkdir()
    onnx.save_model(decoder(DecoderShape(GPT2, 1, 32, 2, 2, 64, SIZE, 64)), str(folder / "gpt2" / "model.onnx"))
    write_byte_tokenizer(folder / "gpt2")


def _images(folder: Path) -> None:
    onnx.save_model(image_model(), str(folder / "model.onnx"))
    np.save(folder / "image.npy", IMAGE)
    (folder / "samples").mkdir()
    for seed in range(3):
        sample = np.random.default_rng(seed).random(IMAGE.shape, np.float32)
        np.savez(folder / "samples" / f"{seed}.npz", image=sample)


def _module(folder: Path) -> None:
    import collage

    options: dict[str, Any] = {"quick": True, "progress": False, "db": folder / "own.sqlite"}
    collage.compile(image_model(), **options).save(folder / "model.collage")


def _training(folder: Path) -> None:
    """The network and the cluster of the page on training pipelines."""
    page = ROOT / "docs" / "graphpipe.md"
    (folder / "model.py").write_text(blocks("python", page)[0])
    (folder / "cluster.toml").write_text(blocks("toml", page)[0])


def _backend(folder: Path) -> None:
    (folder / "my_package.py").write_text("from tests.helpers.planted import Right as MyBackend\n")


def _databases(folder: Path) -> None:
    from collage.measure_db.database import Database

    for path in (folder / "a.sqlite", folder / "b.sqlite", folder / "cache" / "collage" / "measurements.sqlite"):
        with Database(path):
            pass


_MAKERS: Mapping[str, Callable[[Path], None]] = {
    r"\bmodel\.onnx|image\.npy|samples/": _images,
    r"\bmodel\.collage": _module,
    r"pipeline\.(joblib|onnx)": _pipeline,
    r"model\.txt": _booster,
    r"\b(decoder|gpt2)\.onnx": _decoders,
    r"gpt2( |/)": _exported,
    r"model\.py": _training,
    r"\ba\.sqlite": _databases,
    r"my_package:": _backend,
}


def make_files(page: Path, folder: Path) -> None:
    """Write the files that the page's commands begin with."""
    text = "\n".join(commands(page))
    for pattern, make in _MAKERS.items():
        if re.search(pattern, text):
            make(folder)
    if name_of(page) in DYNAMIC:
        onnx.save_model(image_model(dynamic=True), str(folder / "model.onnx"))
