"""A workload as an ONNX file: static shapes where it has them, opset 17, BatchNorm folded into convolutions."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import onnx
import torch

from .catalogue import Entry
from .fold import fold_constants
from .recipe import Recipe
from .workload import Workload

OPSET = 17  # the first with LayerNormalization; the exporter writes GELU as Erf below opset 20


def recipe(entry: Entry, *, batch: int, small: bool) -> Recipe:
    """The recipe that a workload's file would have now."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return Recipe(entry.name, small, batch, version("torch"), digest.hexdigest()[:16])


def to_onnx(workload: Workload, *, name: str, recipe: Recipe) -> onnx.ModelProto:
    """Trace `workload` and export it, with the shape of every value written into the graph.

    The TorchScript exporter is the older of torch's two, but names nodes by module path and folds BatchNorm,
    without a rewriting step of its own.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        path = Path(folder) / f"{name}.onnx"
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", "Constant folding", UserWarning)  # `fold_constants` does the rest
        warnings.filterwarnings("ignore", ".*variable length with LSTM", UserWarning)  # the batch is fixed
        # Of suppression, one node in the file.
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
        torch.onnx.export(
            workload.model,
            workload.sample(0),
            path,
            input_names=list(workload.input_names),
            output_names=list(workload.output_names),
            opset_version=OPSET,
            dynamic_axes={name: dict(axes) for name, axes in workload.dynamic.items()},
            dynamo=False,
        )
        model = onnx.load(path)
    fold_constants(model)
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    model.graph.name = name
    recipe.put_into(model)
    return model


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write a file beside `path`, then rename it, so that a reader never sees half a file."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        onnx.save(model, scratch)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
