"""One network: right answers, Collage's time, streams, idle time, and PyTorch as it is. A process of its own."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collage.graph.dataflow import Array
from scripts.lib.gpu.contenders import (
    Contender,
    collage_contender,
    interleaved,
    largest_error,
    torch_contender,
)
from scripts.lib.gpu.fragment import Fragment
from scripts.lib.gpu.gaps import idle_between_kernels
from scripts.lib.gpu.machine import clocks
from scripts.lib.gpu.streams import compare_streams
from scripts.lib.gpu.task import Task

_SECONDS = 4.0
"""How long contenders take turns."""
_BESIDES_S, _LEAST_BUDGET_S = 30.0, 12.0
"""The seconds that all steps but the compile take, and the least for a compile."""


class Network:
    """The steps on one network, whose results go into a fragment, within ``limit_s`` seconds."""

    def __init__(self, task: Task, fragment: Fragment, limit_s: float) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True  # the fastest of cuDNN's algorithms, as people use it
        self.task, self.fragment = task, fragment
        self.budget_s = max(_LEAST_BUDGET_S, min(task.budget_s, limit_s - _BESIDES_S))
        self.contenders: dict[str, Contender] = {}
        self.workload = task.build()
        self.inputs = [each.numpy() for each in self.workload.sample(0)]
        self.expected: list[Array] = []
        self.module: Any = None

    def run(self) -> None:
        """All steps."""
        step = self.fragment.step
        step("reference", self.reference)
        step("compile", self.compile)
        if self.module is not None:
            step("right", self.right)
        self.pytorch()
        step("times", self.times)
        if self.module is not None and any(self.module.program.on_gpu):
            step("streams", lambda: compare_streams(self.module, self.inputs))
            step("idle", lambda: idle_between_kernels(self.contenders["collage"]))

    def pytorch(self) -> None:
        """PyTorch as it is, and in a CUDA graph, as contenders."""
        for name, graph in (("pytorch", False), ("pytorch in a CUDA graph", True)):
            self.fragment.step(name, partial(self.torch, name, graph=graph))

    def reference(self) -> dict[str, Any]:
        """ONNX Runtime's outputs on the CPU, in float32."""
        import onnxruntime

        path = self.task.export(self.workload)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        given = dict(zip(self.workload.input_names, self.inputs, strict=True))
        self.expected = session.run(None, {name: given[name] for name in names})
        return {"outputs": [list(each.shape) for each in self.expected]}

    def compile(self) -> dict[str, Any]:
        """The compiled module: what runs where, and what was rejected most."""
        from collage.errors import CollageError

        problem = ""
        here, missing = self._backends()
        try:
            self.module = self._compiled(here)
        except CollageError as error:  # some operator has no kernel on the GPU
            problem = str(error)
            self.module = self._compiled((*here, "onnxruntime"))
        self.module.save(self.task.module_path)
        self.contenders["collage"] = collage_contender(self.module, self.inputs)
        launches = self.module.program.launches
        return {
            "budget s": round(self.budget_s, 1),
            "without engines": problem or "compiles",
            "not here": missing,
            "backends": dict(Counter(each.backend for each in launches)),
            "devices": dict(Counter(each.layout for each in launches)),
            "schedule": self.module.report.schedule,
            "summary": {k: v for k, v in self.module.summary().items() if k != "regions"},
        }

    def _backends(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """The task's backends that are here, and why the others are not."""
        import collage

        available = collage.default_registry().availability()
        missing = {name: available[name].reason for name in self.task.backends if not available[name]}
        return tuple(name for name in self.task.backends if name not in missing), missing

    def _compiled(self, backends: tuple[str, ...]) -> Any:
        import collage

        return collage.compile(
            self.task.path,
            db=self.task.folder / "gpu.sqlite",
            device=self.task.device,
            backends=backends or None,
            budget_s=self.budget_s,
            progress=False,
        )

    def right(self) -> dict[str, Any]:
        """The error against ONNX Runtime on the CPU."""
        outputs = self.module.run(dict(zip(self.workload.input_names, self.inputs, strict=True)))
        error = largest_error([*outputs.values()], self.expected)
        assert error < self.task.tolerance, f"wrong by {error:.1e} of the largest magnitude"
        return {"error": error}

    def model(self) -> Any:
        """The PyTorch module on the GPU, in the network's precision."""
        return self.workload.model.cuda()

    def torch(self, name: str, *, graph: bool = False, change: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """PyTorch's module as a contender, changed by its compiler where that is given, and its error."""
        model = self.model() if change is None else change(self.model())
        contender = torch_contender(model, self.inputs, graph=graph)
        error = largest_error(contender.whole(), self.expected)
        self.contenders[name] = contender
        return {"error": error}

    def times(self) -> dict[str, Any]:
        """All contenders in turns, with the clocks before and after."""
        before = clocks()
        found = interleaved(self.contenders, 0.2 if self.task.small else _SECONDS)
        rivals = {name: each["latency us"] for name, each in found.items() if name != "collage"}
        ours = found.get("collage", {}).get("latency us")
        best = min(rivals.values(), default=None)
        ratio = round(best / ours, 3) if ours and best else None
        return {"us": found, "best rival over collage": ratio, "clocks": [before, clocks()]}


def main() -> None:
    """Run the task that is given as JSON, and write to the file that is given, within seconds that are given."""
    about, path, limit_s = sys.argv[1:]
    np.random.seed(0)
    Network(Task.read(json.loads(about)), Fragment(Path(path)), float(limit_s)).run()


if __name__ == "__main__":
    main()
