"""Requests of KServe's protocol V2 as arrays, and answers; what is wrong with a request is said in a line."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest

from collage.errors import InputError
from collage.graph.dataflow import np_dtype
from collage.serve.kserve.messages import InferRequest, answer, parse_request
from collage.serve.kserve.tensors import Signature, Tensor

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16".split()
SIGNATURE = Signature(
    (Tensor("x", "float32", (-1, 2)),), (Tensor("y", "float32", (-1, 2)), Tensor("z", "int64", (-1,)))
)


def of(dtype: str) -> Signature:
    return Signature((Tensor("x", dtype, (-1, 2)),), (Tensor("y", dtype, (-1, 2)),))


def body(**changes: Any) -> bytes:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1], **changes.pop("x", {})}
    data = {"inputs": [{name: each for name, each in x.items() if each is not None}], **changes}
    return json.dumps(data).encode()


def values(dtype: str) -> np.ndarray:
    rng = np.random.default_rng()
    if dtype == "bool":
        return rng.integers(0, 2, (3, 2)).astype(bool)
    if "int" in dtype:
        info = np.iinfo(dtype)
        array = rng.integers(info.min, info.max, (3, 2), dtype, endpoint=True)
        array[0] = info.min, info.max
        return array
    return rng.normal(size=(3, 2)).astype(np_dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("in_bytes", [True, False])
def test_there_and_back(dtype: str, in_bytes: bool) -> None:
    array, signature = values(dtype), of(dtype)
    datatype = signature.inputs[0].datatype
    about: dict[str, Any] = {"datatype": datatype, "shape": [3, 2]}
    if in_bytes:
        head = body(x={**about, "data": None, "parameters": {"binary_data_size": array.nbytes}})
        request = parse_request(head + array.tobytes(), len(head), signature)
    else:
        kept = array if array.dtype.kind in "biuf" else array.astype(np.float32)
        request = parse_request(body(x={**about, "data": kept.tolist()}), None, signature)
    found = request.inputs["x"]
    assert found.dtype == array.dtype and found.flags.aligned and found.flags.writeable
    np.testing.assert_array_equal(found, array)
    back, length = answer("m", InferRequest({}, {"y": in_bytes}, None, {}), {"y": array}, signature)
    (output,) = json.loads(back[:length])["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("y", datatype, [3, 2])
    if in_bytes:
        assert output["parameters"] == {"binary_data_size": array.nbytes} and back[length:] == array.tobytes()
    else:
        again = parse_request(body(x={**about, "data": output["data"]}), None, signature)
        np.testing.assert_array_equal(again.inputs["x"], array)


def test_texts() -> None:
    signature = of("string")
    texts = ["", "a\0", "ä€", "x" * 1000]
    packed = b"".join(struct.pack("<I", len(each.encode())) + each.encode() for each in texts)
    about: dict[str, Any] = {"datatype": "BYTES", "shape": [2, 2]}
    head = body(x={**about, "data": None, "parameters": {"binary_data_size": len(packed)}})
    for request in (
        parse_request(head + packed, len(head), signature),
        parse_request(body(x={**about, "data": texts}), None, signature),
        parse_request(body(x={**about, "data": [texts[:2], texts[2:]]}), None, signature),
    ):
        assert request.inputs["x"].tolist() == [texts[:2], texts[2:]]
        back, length = answer("m", InferRequest({}, {"y": True}, None, {}), {"y": request.inputs["x"]}, signature)
        assert back[length:] == packed
        back, length = answer("m", InferRequest({}, {"y": False}, None, {}), {"y": request.inputs["x"]}, signature)
        assert json.loads(back)["outputs"][0]["data"] == texts and length == len(back)
    for wrong in (packed[:-1], packed + b"\1", struct.pack("<I", 1 << 31), struct.pack("<I", 1) + b"\xff"):
        head = body(x={**about, "shape": [1, 1], "data": None, "parameters": {"binary_data_size": len(wrong)}})
        with pytest.raises(InputError, match="input x"):
            parse_request(head + wrong, len(head), signature)
    with pytest.raises(InputError, match="strings"):
        parse_request(body(x={**about, "data": [1, 2, 3, 4]}), None, signature)


def test_numbers_that_are_none() -> None:
    """Python's clients write NaN, others null; standard JSON has neither NaN nor infinities."""
    text = body(x={"data": ["?", None]}).replace(b'"?"', b"NaN")
    assert np.isnan(parse_request(text, None, SIGNATURE).inputs["x"]).all()
    text = body(x={"data": ["?", 1]}).replace(b'"?"', b"-Infinity")
    assert parse_request(text, None, SIGNATURE).inputs["x"].tolist() == [[-math.inf, 1]]
    wanted = InferRequest({}, {"y": False}, None, {})
    back, _ = answer("m", wanted, {"y": np.array([[math.nan, 1]], np.float32)}, SIGNATURE)
    assert json.loads(back, parse_constant=pytest.fail)["outputs"][0]["data"] == [None, 1]
    with pytest.raises(InputError, match="output y has infinities"):
        answer("m", wanted, {"y": np.array([[math.inf, 1]], np.float32)}, SIGNATURE)


def test_outputs_and_echoes() -> None:
    wanted = [{"name": "z", "parameters": {"binary_data": True}}, {"name": "y"}]
    request = parse_request(body(id="7", parameters={"a": 1}, outputs=wanted), None, SIGNATURE)
    y, z = np.ones((1, 2), np.float32), np.array([5])
    back, length = answer("m", request, {"y": y, "z": z}, SIGNATURE)
    head = json.loads(back[:length])
    assert (head["model_name"], head["id"], head["parameters"]) == ("m", "7", {"a": 1})
    assert [each["name"] for each in head["outputs"]] == ["z", "y"]
    assert back[length:] == z.tobytes() and head["outputs"][1]["data"] == [1, 1]
    assert parse_request(body(), None, SIGNATURE).outputs == {"y": False, "z": False}
    all_in_bytes = parse_request(body(parameters={"binary_data_output": True}), None, SIGNATURE)
    assert all_in_bytes.outputs == {"y": True, "z": True} and not all_in_bytes.parameters


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no object"),
        (b'{"inputs": 3}', "inputs is no list"),
        (b'{"inputs": [3]}', "inputs is no list"),
        (b"{}", "missing input: x"),
        (body(id=3), "id is no text"),
        (body(id="x" * 300), "id is no text"),
        (body(parameters=3), "parameters of the request"),
        (body(parameters={"binary_data_output": 1}), "binary_data_output is true or false"),
        (body(outputs=[{"name": "w"}]), "unknown output: w. The model has: y, z"),
        (body(outputs=[{"name": "y", "parameters": {"classification": 3}}]), "classification"),
        (body(outputs=[{"name": ["y"]}]), "unknown output"),
        (body(x={"name": "w"}), "unknown input: w. The model takes: x"),
        (body(x={"name": ["x"]}), "unknown input"),
        (body(x={"datatype": "INT64"}), "the datatype INT64, and the model takes FP32"),
        (body(x={"datatype": None}), "the datatype None"),
        (body(x={"shape": None}), "no list of whole numbers"),
        (body(x={"shape": [-1, 2]}), "no list of whole numbers"),
        (body(x={"shape": [True, 2]}), "no list of whole numbers"),
        (body(x={"shape": [1 << 64, 2]}), "no list of whole numbers"),
        (body(x={"shape": [1 << 62, 1 << 62]}), "has 2 elements"),
        (body(x={"shape": [2, 2]}), "has 2 elements, and its shape [2, 2] 4"),
        (body(x={"shape": [1] * 100 + [2]}), "101 axes"),
        (body(x={"data": None}), "no list"),
        (body(x={"data": 5}), "no list"),
        (body(x={"data": ["a", 1]}), 'the element "a", which is no FP32'),
        (body(x={"data": [True, 1]}), "the element true"),
        (body(x={"data": [{}, 1]}), "the element {}"),
        (body(x={"data": [1e300, 1]}), "does not hold"),
        (body(x={"data": [10**400, 1]}), "does not hold"),
        (body(x={"parameters": {"shared_memory_region": "a"}}), "shared_memory_region"),
        (body(x={"parameters": {"binary_data_size": 8}}), "there are 0 bytes"),
        (body(x={"parameters": {"binary_data_size": "8"}}), "binary_data_size"),
        (body(x={"parameters": {"binary_data_size": 0}}), "both data and"),
    ],
)
def test_what_is_wrong(text: bytes, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_request(text, None, SIGNATURE)
    message = str(caught.value)
    assert words in message and "\n" not in message and len(message) < 300


def test_wrong_bytes() -> None:
    head = body(x={"data": None, "parameters": {"binary_data_size": 8}})
    for data, words in ((b"1234567", "7 bytes"), (b"12345678" * 2, "belong to no input")):
        with pytest.raises(InputError, match=words):
            parse_request(head + data, len(head), SIGNATURE)
    with pytest.raises(InputError, match="Content-Length"):
        parse_request(head, len(head) + 1, SIGNATURE)
    head = body(x={"shape": [2, 2], "data": None, "parameters": {"binary_data_size": 8}})
    with pytest.raises(InputError, match="takes 16"):
        parse_request(head + bytes(8), len(head), SIGNATURE)


@pytest.mark.parametrize(
    ("dtype", "data"), [("int8", [200, 1]), ("uint64", [-1, 1]), ("int64", [1.0, 1]), ("bool", [1, 0])]
)
def test_numbers_that_a_type_does_not_hold(dtype: str, data: list[Any]) -> None:
    signature = of(dtype)
    with pytest.raises(InputError, match="input x"):
        parse_request(body(x={"datatype": signature.inputs[0].datatype, "data": data}), None, signature)
