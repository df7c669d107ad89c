"""ResNet-50 of the onnx package with random weights in 8 bits, as ONNX Runtime's tool quantises a file; no torch.

The file has QuantizeLinear and DequantizeLinear around each convolution, and weights as int8 with a scale for each
output channel. Scales of activations come from a few random pictures.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx.version_converter

from scripts.lib.demo_model import with_random_weights
from scripts.lib.light_models import FOLDER

_PICTURES = 4


def write_resnet_int8(path: Path) -> None:
    """Write the file."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = with_random_weights(onnx.load(str(FOLDER / "light_resnet50.onnx")))
    model = onnx.version_converter.convert_version(model, 17)
    (given,) = model.graph.input
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    pictures = iter([{given.name: rng.standard_normal(shape, np.float32)} for _ in range(_PICTURES)])

    class Pictures(CalibrationDataReader):
        def get_next(self) -> Any:
            return next(pictures, None)

    with TemporaryDirectory() as folder:
        source, folded = Path(folder) / "resnet50.onnx", Path(folder) / "folded.onnx"
        onnx.save_model(model, str(source))
        quant_pre_process(source, folded, skip_symbolic_shape=True)  # folds BatchNorm into the convolutions
        quantize_static(folded, path, Pictures(), per_channel=True, weight_type=QuantType.QInt8)
