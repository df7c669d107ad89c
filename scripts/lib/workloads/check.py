"""Checks of a written file: the ONNX checker accepts it, and ONNX Runtime agrees with torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from .workload import Workload

HEALTHY_STD = (1e-3, 1e3)
SENSITIVITY = 1e-2  # least change between two inputs, as a share of the output's spread


class CheckError(Exception):
    """The file differs from the network, or the network's values are not sensible."""


@dataclass(frozen=True)
class Comparison:
    """One output on one random input: the distance of ONNX Runtime from torch, and whether the values are sensible."""

    output: str
    max_abs_error: float
    scale: float  # greatest magnitude
    std: float
    sensitivity: float | None  # RMS change from one input to another, over std; None where there is none
    tolerance: float

    def __str__(self) -> str:
        sensitivity = "none" if self.sensitivity is None else f"{self.sensitivity:.2g}"
        return (
            f"{self.output}: max abs error {self.max_abs_error:.1e} (scale {self.scale:.2g}),"
            f" std {self.std:.2g}, sensitivity {sensitivity}"
        )

    def problem(self) -> str | None:
        if not self.max_abs_error <= self.tolerance * self.scale:
            return f"error is over {self.tolerance:g} of the scale"
        if not HEALTHY_STD[0] <= self.std <= HEALTHY_STD[1]:
            return f"std is outside {HEALTHY_STD[0]:g} to {HEALTHY_STD[1]:g}"
        if self.sensitivity is not None and not self.sensitivity >= SENSITIVITY:
            return f"sensitivity is under {SENSITIVITY:g}: the output hardly depends on the input"
        return None


def check(workload: Workload, path: Path) -> list[Comparison]:
    """Compare every output of the file at `path` with `workload`; raises `CheckError`."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise CheckError(f"the ONNX checker rejects it: {error}") from error
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs, others = workload.sample(1), workload.sample(2)
    feeds = {name: value.numpy() for name, value in zip(workload.input_names, inputs, strict=True)}
    actual = session.run(list(workload.output_names), feeds)
    expected, elsewhere = _run(workload, inputs), _run(workload, others)

    comparisons = []
    for name, got, want, other in zip(workload.output_names, actual, expected, elsewhere, strict=True):
        if got.shape != want.shape:
            raise CheckError(f"{name} has shape {got.shape}, not {want.shape}")
        std = float(want.std())
        change = None  # integers say little: a detector's classes may well be the same for two pictures
        if want.shape == other.shape and want.dtype.kind == "f":
            change = float(np.sqrt(np.square(want - other).mean())) / std
        comparison = Comparison(
            output=name,
            max_abs_error=float(np.abs(got - want).max()),
            scale=float(np.abs(want).max()),
            std=std,
            sensitivity=change,
            tolerance=workload.tolerance,
        )
        problem = comparison.problem()
        if problem is not None:
            raise CheckError(f"{problem} ({comparison})")
        comparisons.append(comparison)
    return comparisons


@torch.no_grad()
def _run(workload: Workload, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    outputs = workload.model(*inputs)
    return [value.numpy() for value in (outputs if isinstance(outputs, tuple) else (outputs,))]
