"""The package that a new backend begins as: long depthwise filters by fast Fourier transform, tests, and CI."""

from __future__ import annotations

import importlib.util
import keyword
from collections.abc import Collection, Mapping
from pathlib import Path
from string import Template

from collage.errors import UsageError

_MODULE = '''"""The backend $name: long depthwise filters by fast Fourier transform."""

import io

import numpy as np

import collage


class LongFilters(collage.BasePatternRule):
    """Takes depthwise ``conv1d`` of float32 with many constant taps. The reasons show in ``collage show --explain``."""

    @staticmethod
    def op_rule(op: collage.OpNode) -> bool | str:
        if op.name != "conv1d":
            return f"only conv1d, not {op.name}"
        data, weight = op.input_types
        if data.dtype != "float32" or op.const_inputs != (False, True):
            return "not float32 with a constant filter"
        if not op.attr["groups"] == data.shape[1] == weight.shape[0]:
            return "not depthwise"
        if op.attr["strides"] != (1,) or op.attr["dilation"] != (1,):
            return "stride or dilation is not 1"
        return weight.shape[2] >= 256 or "fewer than 256 taps"


class Filter(collage.Kernel):
    """ONNX's convolution is a correlation: y = irfft(rfft(x) * conj(rfft(w)))."""

    def __init__(self, weight: np.ndarray, begin: int, end: int) -> None:
        self.weight, self.begin, self.end = weight, begin, end

    def bind(self, inputs, outputs):
        (x,), (y,) = inputs, outputs
        length = self.begin + x.shape[2] + self.end
        size = 1 << (length - 1).bit_length()
        padded = np.zeros((*x.shape[:2], size), np.float32)
        inside = padded[:, :, self.begin : self.begin + x.shape[2]]
        spectrum = np.conj(np.fft.rfft(self.weight, size))

        def call() -> None:
            inside[...] = x
            y[...] = np.fft.irfft(np.fft.rfft(padded) * spectrum, size)[:, :, : y.shape[2]]

        return call


class $Class(collage.Backend):
    name = "$name"
    kind = collage.BackendKind.LIBRARY

    def available(self) -> collage.Availability:
        return collage.Availability(version=np.__version__)  # of the library; or reason="what is missing"

    def sources(self, options: collage.BuildOptions) -> list[LongFilters]:
        return [LongFilters()]

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        (conv,), (weight,) = subgraph.operators, subgraph.weights.values()
        artifact = io.BytesIO()
        np.savez(artifact, weight=weight[:, 0], padding=conv.attrs["padding"])
        return artifact.getvalue()

    def load(self, artifact: bytes, options: collage.BuildOptions) -> collage.Kernel:
        with np.load(io.BytesIO(artifact)) as stored:
            return Filter(stored["weight"], *map(int, stored["padding"]))
'''

_TEST = '''"""The kernels against their contract. `collage check-backend $name` tries many more operators."""

from collage.testing import check_kernel
from long_filter import model

from $name import $Class


def test_a_long_filter():
    assert not check_kernel($Class(), model())


def test_uneven_padding():
    assert not check_kernel($Class(), model(taps=300, length=1000, channels=3, pads=(7, 12)))
'''

_MODEL = '''"""A model whose long filter the backend takes. As a program it writes model.onnx."""

import numpy as np
import onnx
from onnx import helper, numpy_helper


def model(taps=2047, length=8192, channels=8, pads=(1023, 1023)):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((channels, 1, taps)).astype(np.float32) / taps
    node = helper.make_node("Conv", ["x", "w"], ["f"], "long_filter", group=channels, pads=pads)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, channels, length])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    nodes = [node, helper.make_node("Tanh", ["f"], ["y"], "tanh")]
    graph = helper.make_graph(nodes, "filters", [x], [y], [numpy_helper.from_array(weight, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


if __name__ == "__main__":
    onnx.save_model(model(), "model.onnx")
'''

_PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$project"
version = "0.1.0"
requires-python = ">=3.10"
dependencies = ["collage-compiler[compile]", "numpy"]
optional-dependencies = { test = ["pytest"] }

[project.entry-points."collage.backends"]
$name = "$name:$Class"

[tool.setuptools]
py-modules = ["$name"]

[tool.pytest.ini_options]
pythonpath = ["tests"]
"""

_WORKFLOW = """name: test
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: { python-version: "3.12" }
      - run: pip install -e .[test]
      - run: pytest
      - run: collage check-backend $name
"""

_README = """# $project

A backend of [Collage](https://pypi.org/project/collage-compiler/).

```sh
pip install -e .[test]
pytest
collage check-backend $name
```
"""

_FILES: Mapping[str, str] = {
    "README.md": _README,
    "pyproject.toml": _PROJECT,
    "$name.py": _MODULE,
    "tests/long_filter.py": _MODEL,
    "tests/test_$name.py": _TEST,
    ".github/workflows/test.yml": _WORKFLOW,
}
"""The files by path. ``$name``, ``$Class`` and ``$project`` stand for the backend's names."""


def write_package(name: str, place: Path, taken: Collection[str]) -> list[Path]:
    """Write the package of a new backend into a new folder, and return the paths of its files.

    ``taken`` are the names of backends that there are. Raises UsageError for a bad name and a folder that exists.
    """
    if not name.isidentifier() or name != name.lower() or keyword.iskeyword(name) or name.startswith("_"):
        raise UsageError(f"a backend's name is a lower-case identifier, such as my_backend, and not {name!r}.")
    if name in taken:
        raise UsageError(f"the backend name {name} is taken; choose another.")
    if importlib.util.find_spec(name) is not None:
        raise UsageError(f"there is a Python module {name} already; choose another name.")
    if place.exists():
        raise UsageError(f"{place} exists already; give another folder with --output.")
    words = {"name": name, "Class": name.title().replace("_", ""), "project": name.replace("_", "-")}
    paths = []
    for path, text in _FILES.items():
        paths.append(place / Template(path).substitute(words))
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        paths[-1].write_text(Template(text).substitute(words))
    return paths
