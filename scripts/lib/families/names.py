"""What both interpreters know: the exporters, the file that each writes, and the packages that they need."""

from __future__ import annotations

EXPORTERS = {
    "optimum": "optimum-onnx, with the task text-generation-with-past",
    "torch-18": "torch.onnx.export(dynamo=True) with a cache, operator set 18",
    "torch-23": "torch.onnx.export(dynamo=True) with a cache, operator set 23",
}
"""The exporters, and what each is."""

MODEL = "model.onnx"
"""The name of an exported file in its folder."""

PACKAGES = {
    "torch": "==2.13.*",
    "transformers": "==4.57.*",
    "optimum": "==2.1.*",
    "optimum-onnx": "==0.1.*",
    "onnx": ">=1.23,<1.24",
    "onnxscript": ">=0.5",
    "onnxruntime": ">=1.31,<1.33",
}
"""The packages that exporters need, with the versions that the sweep was run with."""
