"""What docs/backends.md shows works, also where a script defines the format, so that no worker can import it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.helpers.backends_for_tests import onnx_model

ROOT = Path(__file__).parents[3]

CHECK_FORMAT = """
import onnxruntime
layouts = [region.layout for region in module.program.launches if region.backend == "columns"]
assert layouts == ["plain -> column-major", "column-major", "column-major -> plain"], layouts
x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
(expected,) = onnxruntime.InferenceSession("model.onnx").run(None, {"x": x})
np.testing.assert_allclose(module(x), expected, rtol=1e-5, atol=1e-6)
"""


CHECK_ENGINE = """
import onnxruntime
x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
(expected,) = onnxruntime.InferenceSession("model.onnx").run(None, {"x": x})
np.testing.assert_allclose(module(x), expected, rtol=1e-5, atol=1e-6)
whole, *_ = [each for each in module.report.candidates if each.backend == "reference"]
assert whole.cost_us > 0 and len(whole.nodes) == 1, whole
alone = collage.compile("model.onnx", backends=["reference"], db="db.sqlite", progress=False)
assert alone.program.suffix.region.backend == "reference"
np.testing.assert_allclose(alone(x), expected, rtol=1e-5, atol=1e-6)
"""


def test_the_format_of_the_document_is_measured_and_used(tmp_path: Path) -> None:
    run_block("collage.StorageFormat", '"columns"', CHECK_FORMAT, tmp_path)


def test_the_engine_of_the_document_is_measured_and_runs_models_whole(tmp_path: Path) -> None:
    run_block("collage.Engine)", '"reference", "onnxruntime"', "import numpy as np\n" + CHECK_ENGINE, tmp_path)


def run_block(holds: str, backends: str, check: str, tmp_path: Path) -> None:
    """The document's block of code with that text, on a cumulative sum with these backends, and then the check."""
    text = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (code,) = (block for block in blocks if holds in block)
    kind = ((6, 5), TensorProto.FLOAT)
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"])]
    onnx.save(onnx_model(nodes, {"x": kind}, {"y": kind}, {"axis": np.array(0, np.int64)}), tmp_path / "model.onnx")
    script = tmp_path / "script.py"
    arguments = f'"model.onnx", backends=[{backends}], db="db.sqlite", progress=False'
    script.write_text(code.replace('"model.onnx"', arguments) + check)
    path = os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, script], check=True, env=environment, cwd=tmp_path)
