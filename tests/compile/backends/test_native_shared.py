"""What all native kernels promise: items that do not mix, scratch memory that suffices, and damage that is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from collage.backends.native_kernels.algorithms import named
from collage.core.typed import MalformedError
from collage.errors import CollageError, ModuleFileError
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import BF16, INT8
from collage.kernel.options import BuildOptions
from collage.native.kernel_library import kernel_function
from collage.native.packed import Packed, from_artifact, to_bytes
from tests.compile.backends.test_native_lstm import layer
from tests.compile.backends.test_native_top_k import choosing
from tests.compile.backends.test_native_winograd import conv_model, transposed_model
from tests.helpers.backends.native_checks import BACKEND, needs_native, refusals_of, run_variant, subgraphs_of
from tests.helpers.backends.product_models import product_model
from tests.helpers.reference import evaluate
from tests.slow.backends.test_native_direct import conv_model as grouped_model
from tests.slow.backends.test_native_experts import mixture

pytestmark = needs_native

REDUCED = frozenset({BF16, INT8})
BATCHES = {
    "groups of 8": grouped_model(4, (8, 8), [9, 10], [3, 3], batch=3, pads=[1] * 4, then=("Relu",)),
    "groups of 20": grouped_model(2, (20, 20), [9, 10], [3, 3], batch=3, pads=[1] * 4),
    "depthwise": grouped_model(19, (1, 1), [9, 10], [5, 5], batch=3, pads=[2] * 4, then=("Clip",)),
    "winograd": conv_model((16, 32), [11, 9], [3, 3], batch=3, pads=[1] * 4, then=("Relu",)),
    "winograd of planes": conv_model((16, 16), [4, 7, 7], [3, 3, 3], batch=3, pads=[1] * 6),
    "transposed": transposed_model((32, 16), [5, 7], batch=3, pads=[1] * 4),
    "narrow": transposed_model((32, 3), [5, 7], batch=3, pads=[1] * 4, then=("Relu",)),
    "shallow": conv_model((3, 16), [12, 13], [7, 7], batch=3, strides=[2, 2], pads=[3] * 4),
    "shallow planes": conv_model((3, 16), [8, 9, 9], [3, 3, 3], batch=3, pads=[1] * 6),
    "products": product_model([3, 23, 64], 64, then=("Gelu",)),
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("odd", [1e6, 1e-6, np.nan, np.inf])
def test_other_items_of_a_batch_are_as_without(name: str, odd: float) -> None:
    chain = subgraphs_of(BATCHES[name])[-1]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in chain.input_types]
    changed = [inputs[0].copy(), *inputs[1:]]
    changed[0].reshape(3, -1)[1] *= np.float32(odd)
    for variant in BACKEND.variants(chain, BuildOptions(threads=2)):
        usual, found = (run_variant(chain, variant, 2, each)[0].reshape(3, -1) for each in (inputs, changed))
        np.testing.assert_array_equal(found[[0, 2]], usual[[0, 2]], err_msg=str(variant))
        assert not np.array_equal(found[1], usual[1])
        assert not np.isnan(odd) or np.isnan(found[1]).any()


@pytest.mark.parametrize("name", ["shallow", "narrow"])
def test_nan_is_where_it_is_seen(name: str) -> None:
    chain = subgraphs_of(BATCHES[name])[-1]
    x = np.zeros(chain.input_types[0].shape, np.float32)
    x[1, 2, 3, 4] = np.nan
    (wanted,) = evaluate(chain, [x])
    for variant in BACKEND.variants(chain, BuildOptions()):
        (found,) = run_variant(chain, variant, 1, [x])
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=str(variant))


# ----------------------------------------------------------------------------------------------------------
# -------- Artifacts

MODELS: Mapping[str, Sequence[onnx.ModelProto]] = {
    "direct": [grouped_model(4, (8, 8), [16, 16], [3, 3])],
    "winograd": [
        conv_model((64, 48), [5, 28, 28], [3, 3, 3], pads=[1] * 6),
        conv_model((16, 32), [2, 7, 7], [3, 3, 3], pads=[1] * 6),
    ],
    "transposed": [transposed_model((32, 16), [8, 8], pads=[1] * 4)],
    "narrow": [transposed_model((64, 3), [41, 60], pads=[1] * 4)],
    "shallow": [
        conv_model((3, 48), [64, 63], [3, 5], strides=[2, 2]),
        conv_model((3, 48), [9, 30, 31], [5, 7, 7], strides=[1, 2, 2]),
        conv_model((3, 48), [3, 30, 31], [3, 2, 1], strides=[1, 2, 2]),
    ],
    "product": [product_model([4, 64], 96)],
    "lstm": [layer(batch=2)],
    "top_k": [choosing((6, 16), 3)],
    "experts": [mixture(4, 20), mixture(60, 7, 64, 100), mixture(1, 1, 1, 1)],
}


def packed_kernels(proto: onnx.ModelProto, threads: int = 2) -> list[tuple[str, Packed]]:
    """The algorithm and the numbers of each kernel that is offered for the longest match."""
    chain: Subgraph = subgraphs_of(proto)[-1]
    variants = BACKEND.variants(chain, BuildOptions(threads=threads, precisions=REDUCED))
    return [from_artifact(BACKEND.codegen(chain, BuildOptions(threads=threads, variant=each))) for each in variants]


SCRATCH = {
    **dict.fromkeys(("winograd", "transposed_winograd"), ("collage_winograd_scratch", 4)),
    "narrow_transposed": ("collage_narrow_transposed_scratch", 4),
    "shallow_conv": ("collage_shallow_conv_scratch", 4),
    "experts": ("collage_expert_gemm_scratch", 1),
    "bf16_experts": ("collage_expert_gemm_bf16_scratch", 1),
    "int8_experts": ("collage_expert_gemm_int8_scratch", 1),
}
"""For each algorithm the C function that says how much scratch memory a share needs, and its unit in bytes."""


def test_scratch_memory_is_as_large_as_the_kernel_wants() -> None:
    seen = set()
    for name, packed in (each for protos in MODELS.values() for p in protos for each in packed_kernels(p)):
        if name not in SCRATCH:
            continue
        function, unit = SCRATCH[name]
        wanted = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(kernel_function(function))
        kernel: Any = named(name).load(packed, 2)
        assert unit * wanted(ctypes.addressof(kernel._shape)) == kernel._scratch_bytes, name
        seen.add(name)
    assert seen == SCRATCH.keys()


_OF_PRODUCTS = [{"rows": 0}, {"depth": 68}, {"columns": 1 << 50}, {"row_chunk": 0}]
_OF_NARROW = [*_OF_PRODUCTS, {"src_narrow": 2}, {"depth": 1 << 46}]
_OF_EXPERTS = [
    *({name: 0} for name in ("rows", "depth", "columns", "experts", "row_chunk")),
    *({"experts": 5}, {"depth": 41}, {"columns": 97}, {"in_order": 2}, {"row_chunk": 1 << 62}),
]
_TOO_MUCH = [{"batch": (1 << 62) - 2}]
"""A step of zero lets 2**62 - 2 pictures be in the place of one."""
WRONG: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "gemm": _OF_PRODUCTS,
    "bf16_gemm": _OF_NARROW,
    "amx_gemm": _OF_NARROW,
    "int8_gemm": _OF_NARROW,
    "lstm": [{"hidden": 8}, {"directions": 3}, {"hidden": 64}, {"steps": 0}],
    "top_k": [{"chosen": 17}, {"chosen": 0}, {"rows": 0}, {"smallest": 2}],
    "experts": [*_OF_EXPERTS, {"slice": 0}, {"rows": 1.5}, {"choice": "1"}, {"choice": None}, {"data": None}],
    "bf16_experts": _OF_EXPERTS,
    "int8_experts": _OF_EXPERTS,
    **dict.fromkeys(("direct_conv", "bf16_direct_conv", "winograd", "transposed_winograd"), _TOO_MUCH),
    "shallow_conv": _TOO_MUCH,
    "narrow_transposed": [{"outputs": 5}, {"row_chunk": 10**9}, {"row_pad": [-9, 0]}],
}
"""Numbers that no artifact may have."""


@pytest.mark.parametrize("model", MODELS)
def test_damaged_artifacts_are_refused(model: str) -> None:
    for name, packed in packed_kernels(MODELS[model][0]):
        pieces = packed.numbers.get("pieces", 1)
        for wrong in (*WRONG[name], {"shares": 3 * pieces}):
            numbers = {**packed.numbers, **wrong}
            if wrong in _TOO_MUCH:
                numbers |= {step: [0, *numbers[step][1:]] for step in ("from", "to") if step in numbers}
                numbers |= {"to_batch": 0} if "to_batch" in numbers else {}
            with pytest.raises((CollageError, ValueError)):
                BACKEND.load(to_bytes(name, replace(packed, numbers=numbers)), BuildOptions(threads=2))
        for array, content in packed.arrays.items():
            short = replace(packed, arrays={**packed.arrays, array: content.ravel()[:-1]})
            with pytest.raises(MalformedError, match=array.replace("of_state", "weights of the state")):
                named(name).load(short, 2)


def test_a_module_with_a_kernel_that_was_removed_says_what_to_do() -> None:
    ((_, packed), *_) = packed_kernels(product_model([4, 64], 96))
    for name in ("strassen_conv", "strassen_gemm"):
        with pytest.raises(ModuleFileError, match=r"Strassen.*: compile the model again"):
            BACKEND.load(to_bytes(name, packed), BuildOptions(threads=2))


def _of_int32(proto: onnx.ModelProto) -> onnx.ModelProto:
    for info in (proto.graph.input[0], proto.graph.output[0]):
        info.type.tensor_type.elem_type = onnx.TensorProto.INT32
    return proto


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (conv_model((16, 16), [7, 7], [5, 5]), "a window of 5x5"),
        (conv_model((16, 16), [7, 7], [3, 3], strides=[1, 2]), "at distances other than 1"),
        (conv_model((24, 16), [7, 7], [3, 3]), "24 to 16 channels"),
        (conv_model((9, 16), [7, 7], [5, 5]), "9 input channels are not few"),
        (conv_model((3, 16), [9, 9], [3, 3], strides=[1, 3]), "at every 3 columns"),
        (conv_model((3, 16), [9, 9], [3, 3], dilations=[2, 2]), "dilated"),
        (transposed_model((16, 24), [4, 4]), "16 to 24 channels"),
        (transposed_model((16, 5), [4, 4]), "5 output channels are not few"),
        (transposed_model((16, 3), [8, 8], pads=[3, 0, 0, 0]), "a padding of (3, 0)"),
        (grouped_model(2, (64, 64), [5, 5], [3, 3]), "2 groups of 64 channels"),
        (grouped_model(2, (4, 4), [9, 9], [2, 8]), "a window 8 wide"),
        (layer(hidden=20), "20 hidden units are no multiple of 16"),
        (layer(extra={"clip": 1.0}), "clip"),
        (layer(extra={"activations": ["Sigmoid", "Relu", "Tanh"]}), "other activations"),
        (choosing((6, 8), 3, axis=0), "another axis"),
        (choosing((2, 300), 129), "128 at most"),
        (_of_int32(choosing((2, 30), 3)), "of int32"),
    ],
)
def test_what_no_kernel_takes_has_a_reason(proto: onnx.ModelProto, reason: str) -> None:
    assert not subgraphs_of(proto)
    assert any(reason in each for each in refusals_of(proto))
