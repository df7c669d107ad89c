"""Which network a part is about, and how: as plain values, since the part is a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scripts.lib.workloads.workload import Workload

_TOLERANCES = {"float32": 1e-3, "float16": 2e-2}

_WEIGHTS = {"mlp": 0.3, "dcgan": 0.5, "nasnet_a_mobile": 1.5}
"""The time that workloads get as against the others."""

MLP = "mlp"
"""A workload of this benchmark: three layers of 256, which may be faster on the CPU."""


@dataclass(frozen=True)
class Task:
    """A workload with a batch in a precision, compiled in ``budget_s`` seconds for a device, by these backends.

    ``rivals`` tells whether PyTorch's compiler is compared with it, and ``place`` is the folder of all files.
    """

    workload: str
    batch: int
    precision: str
    device: str
    backends: tuple[str, ...]
    budget_s: float
    rivals: bool
    place: str
    small: bool = False

    @staticmethod
    def read(values: Mapping[str, Any]) -> Task:
        """The inverse of ``plain``."""
        return Task(**{**values, "backends": tuple(values["backends"])})

    def plain(self) -> dict[str, Any]:
        """The fields, as JSON holds them."""
        return asdict(self)

    @property
    def name(self) -> str:
        """The name of its results."""
        return f"{self.workload}-{self.batch}-{self.precision}-{self.device}"

    @property
    def folder(self) -> Path:
        """Where files are kept."""
        return Path(self.place)

    @property
    def path(self) -> Path:
        """The ONNX file."""
        return self.folder / f"{self.name}.onnx"

    @property
    def module_path(self) -> Path:
        """The module, once it is compiled."""
        return self.path.with_suffix(".collage")

    @property
    def weight(self) -> float:
        """The time that it gets as against other tasks."""
        return _WEIGHTS.get(self.workload, 1.0)

    @property
    def tolerance(self) -> float:
        """The largest error that is right, in units of an output's largest magnitude."""
        return _TOLERANCES[self.precision]

    def build(self) -> Workload:
        """The network of PyTorch, in the task's precision."""
        found = self._in_float32()
        return found if self.precision == "float32" else _in_float16(found)

    def _in_float32(self) -> Workload:
        import torch

        if self.workload == MLP:
            from scripts.lib.workloads.workload import Workload, gaussian_inputs

            torch.manual_seed(0)
            layers = [torch.nn.Linear(256, 256), torch.nn.ReLU()] * 2
            model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 10)).eval()
            return Workload(model, ("x",), ("y",), gaussian_inputs(self.batch, 256))
        from scripts.lib.workloads.catalogue import ENTRIES

        return ENTRIES[self.workload].build(batch=self.batch, small=self.small)

    def export(self, workload: Workload) -> Path:
        """Write the ONNX file, in the task's precision, and give its path."""
        import onnx

        from scripts.lib.workloads.export import to_onnx, write
        from scripts.lib.workloads.recipe import Recipe

        recipe = Recipe(self.workload, self.small, self.batch, "", "")
        model = to_onnx(workload, name=self.workload, recipe=recipe)
        onnx.checker.check_model(model)
        write(model, self.path)
        return self.path


def _in_float16(workload: Workload) -> Workload:
    """The same with weights and inputs in float16; integers stay as they are."""

    def sample(seed: int) -> tuple[Any, ...]:
        return tuple(each.half() if each.is_floating_point() else each for each in workload.sample(seed))

    return replace(workload, model=workload.model.half(), sample=sample)
