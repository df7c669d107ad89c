"""A compiled network against PyTorch's compiler and the engines that are installed. This is a process of its own."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.lib.gpu.contenders import collage_contender, engine_contender, largest_error
from scripts.lib.gpu.fragment import Fragment
from scripts.lib.gpu.network import Network
from scripts.lib.gpu.task import Task

_ENGINES = ("onnxruntime_cuda", "tensorrt")


class Rivals(Network):
    """The steps on one network that has been compiled. What takes longest comes last."""

    def run(self) -> None:
        """All steps, with times after each group of rivals."""
        step = self.fragment.step
        step("reference", self.reference)
        step("load", self.load)
        self.pytorch()
        for name, profile in self.engines():
            step(f"{name}, {profile or 'as it is'}", partial(self.engine, name, profile))
        step("times", self.times)
        step("torch.compile", partial(self.torch, "torch.compile", change=_compiled_by_inductor))
        step("times with torch.compile", self.times)

    def load(self) -> dict[str, Any]:
        """The module that the network's own part has compiled, or one that is compiled now, after an earlier run."""
        import collage

        if not self.task.module_path.exists():
            self.compile()
        self.module = collage.load(self.task.module_path)
        self.contenders["collage"] = collage_contender(self.module, self.inputs)
        return {"error": largest_error(self.contenders["collage"].whole(), self.expected)}

    def engines(self) -> list[tuple[str, str]]:
        """The engines that are here, each with its profiles."""
        import collage
        from collage.backends.engine import as_engine
        from collage.kernel.options import BuildOptions

        registry = collage.default_registry()
        available = registry.availability()
        return [
            (name, profile)
            for name in _ENGINES
            if available[name]
            for profile in as_engine(registry[name]).profiles(BuildOptions())
        ]

    def engine(self, name: str, profile: str) -> dict[str, Any]:
        """An engine on the whole model as a contender, and its error."""
        contender = engine_contender(name, profile, self.task.path, self.inputs)
        error = largest_error(contender.whole(), self.expected)
        self.contenders[f"{name}, {profile}" if profile else name] = contender
        return {"error": error}


def _compiled_by_inductor(model: Any) -> Any:
    """PyTorch's compiler, with its search for the fastest kernels, and CUDA graphs."""
    import torch

    return torch.compile(model, mode="max-autotune", dynamic=False)


def main() -> None:
    """Run the task that is given as JSON, and write to the file that is given, within seconds that are given."""
    about, path, limit_s = sys.argv[1:]
    np.random.seed(0)
    Rivals(Task.read(json.loads(about)), Fragment(Path(path)), float(limit_s)).run()


if __name__ == "__main__":
    main()
