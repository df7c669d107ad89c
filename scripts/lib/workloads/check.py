"""Checks of a written file: the ONNX checker accepts it, and ONNX Runtime agrees with torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from collage.errors import CollageError

from .workload import Workload

HEALTHY_STD = (1e-3, 1e3)
SENSITIVITY = 1e-2  # least RMS change between two inputs, as a share of the output's spread


class CheckError(CollageError):
    """The file differs from the network, or the network's values are not sensible."""


def check(workload: Workload, path: Path) -> list[str]:
    """Compare every output of the file at `path` with `workload`: a line for each. Raises `CheckError`."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise CheckError(f"the ONNX checker rejects it: {error}") from error
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs, others = workload.sample(1), workload.sample(2)
    feeds = {name: value.numpy() for name, value in zip(workload.input_names, inputs, strict=True)}
    actual = session.run(list(workload.output_names), feeds)
    outputs = zip(workload.output_names, actual, _run(workload, inputs), _run(workload, others), strict=True)
    return [_compared(name, got, want, other, workload.tolerance) for name, got, want, other in outputs]


def _compared(name: str, got: np.ndarray, want: np.ndarray, other: np.ndarray, tolerance: float) -> str:
    """A line on one output: its error, and whether its values are sensible. ``other`` is that of other inputs."""
    if got.shape != want.shape:
        raise CheckError(f"{name} has shape {got.shape}, not {want.shape}")
    error, scale, std = float(np.abs(got - want).max()), float(np.abs(want).max()), float(want.std())
    change = None  # integers say little: a detector's classes may well be the same for two pictures
    if want.shape == other.shape and want.dtype.kind == "f":
        change = float(np.sqrt(np.square(want - other).mean())) / std
    line = (
        f"{name}: max abs error {error:.1e} (scale {scale:.2g}), std {std:.2g}, "
        f"sensitivity {'none' if change is None else f'{change:.2g}'}"
    )
    if not error <= tolerance * scale:
        raise CheckError(f"error is over {tolerance:g} of the scale ({line})")
    if not HEALTHY_STD[0] <= std <= HEALTHY_STD[1]:
        raise CheckError(f"std is outside {HEALTHY_STD[0]:g} to {HEALTHY_STD[1]:g} ({line})")
    if change is not None and not change >= SENSITIVITY:
        raise CheckError(f"the output hardly depends on the input ({line})")
    return line


@torch.no_grad()
def _run(workload: Workload, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    outputs = workload.model(*inputs)
    return [value.numpy() for value in (outputs if isinstance(outputs, tuple) else (outputs,))]
