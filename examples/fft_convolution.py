"""A backend from outside the package, in about 100 lines: long depthwise filters by fast Fourier transform.

No engine on the list computes a one-dimensional depthwise convolution with thousands of taps (as long-filter
audio and state-space models have) in other than direct form: taps x length multiplications. Numpy's FFT needs
length x log(length). Collage measures both and takes the FFT where it is faster.

    python examples/fft_convolution.py
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import collage

LEAST_TAPS = 256


class LongFilterRule(collage.BasePatternRule):
    """Takes depthwise ``conv1d`` with stride and dilation 1 and many constant taps."""

    @staticmethod
    def op_rule(op: Any) -> bool | str:
        if op.name != "conv1d":
            return f"only conv1d, not {op.name}"
        channels, weight = op.input_types[0].shape[1], op.input_types[1].shape
        if not op.const_inputs[1]:
            return "the filter is not constant"
        if op.attr["groups"] != channels or weight[0] != channels:
            return "not depthwise"
        if op.attr["strides"] != (1,) or op.attr["dilation"] != (1,):
            return "stride or dilation is not 1"
        return weight[2] >= LEAST_TAPS or f"fewer than {LEAST_TAPS} taps"


class FftConvolution(collage.Backend):
    """``codegen`` keeps the filter and the padding; ``load`` transforms the filter once."""

    name = "fft"
    kind = collage.BackendKind.LIBRARY

    def available(self) -> collage.Availability:
        return collage.Availability(version=np.__version__)

    def sources(self, options: collage.BuildOptions) -> Sequence[LongFilterRule]:
        return (LongFilterRule(),)

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        (conv,) = subgraph.operators
        (weight,) = subgraph.weights.values()
        if subgraph.inputs != (conv.inputs[0],):
            raise collage.UnsupportedError("the filter comes first")
        stream = io.BytesIO()
        np.savez(stream, weight=weight, padding=np.array(conv.attrs["padding"]))
        return stream.getvalue()

    def load(self, artifact: bytes, options: collage.BuildOptions) -> collage.Kernel:
        with np.load(io.BytesIO(artifact)) as stored:
            return FftKernel(stored["weight"][:, 0, :], stored["padding"])


class FftKernel(collage.Kernel):
    """y = irfft(rfft(padded x) * conj(rfft(w))): ONNX's convolution is a correlation."""

    def __init__(self, weight: np.ndarray, padding: np.ndarray) -> None:
        self._weight, self._begin, self._end = weight, int(padding[0]), int(padding[1])

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Any:
        x, y = inputs[0], outputs[0]
        length = x.shape[2] + self._begin + self._end
        size = 1 << (length - 1).bit_length()
        padded = np.zeros((*x.shape[:2], size), x.dtype)
        inside = padded[:, :, self._begin : self._begin + x.shape[2]]
        spectrum = np.conj(np.fft.rfft(self._weight, size, axis=1))

        def run() -> None:
            np.copyto(inside, x)
            y[...] = np.fft.irfft(np.fft.rfft(padded) * spectrum, size)[:, :, : y.shape[2]]

        return run


def long_filter_model(taps: int = 2047, length: int = 8192, channels: int = 8) -> onnx.ModelProto:
    """A long depthwise filter, an activation and an ordinary short convolution; random weights."""
    rng = np.random.default_rng(0)
    long_filter = rng.standard_normal((channels, 1, taps)).astype(np.float32) / taps
    mix = rng.standard_normal((channels, channels, 3)).astype(np.float32) / channels
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["f"], "long_filter", group=channels, pads=[taps // 2] * 2),
            helper.make_node("Tanh", ["f"], ["t"], "tanh"),
            helper.make_node("Conv", ["t", "m"], ["y"], "mix", pads=[1, 1]),
        ],
        "long_filter",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, length])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, channels, length])],
        [numpy_helper.from_array(long_filter, "w"), numpy_helper.from_array(mix, "m")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def main() -> None:
    collage.register_backend(FftConvolution())
    module = collage.compile(long_filter_model())
    for region in module.placement:
        print(f"{region['backend']:12} {'+'.join(region['ops']):20} {region['cost_us']:9.1f} us")
    print(
        "each alone and Collage's choice, us:",
        {k: round(v["median_us"]) for k, v in module.report.finalists.items()},
    )


if __name__ == "__main__":
    main()
