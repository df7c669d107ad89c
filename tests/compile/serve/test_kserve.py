"""The client library of Triton, and raw requests, against ``collage serve`` of modules."""

from __future__ import annotations

import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import collage
from tests.helpers.cli.helpers import fails
from tests.helpers.models import make_model
from tests.helpers.serve.served import ROOT, Served, served
from tests.helpers.tables import COLUMNS, pipeline, rows, trees

for _name in ("prometheus_client", "starlette", "uvicorn"):
    pytest.importorskip(_name, reason=f"{_name} is missing: pip install 'collage-compiler[serve]'")

QUICK: dict[str, Any] = {"progress": False, "threads": 1, "quick": True, "budget_s": 3.0}


def two_inputs() -> onnx.ModelProto:
    """A dense layer of two inputs with a batch of 4, and its rows' largest numbers."""
    weights = {"w": np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "shift"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=1),
    ]
    shapes = {"x": [4, 8], "shift": [4, 4]}
    return make_model(nodes, shapes, {"y": [4, 4], "best": [4, 1]}, weights, types={"best": TensorProto.INT64})


def narrow() -> onnx.ModelProto:
    """A float16 and a bfloat16 output of a float16 input."""
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Cast", ["x"], ["z"], to=TensorProto.BFLOAT16),
    ]
    types = {"x": TensorProto.FLOAT16, "y": TensorProto.FLOAT16, "z": TensorProto.BFLOAT16}
    return make_model(nodes, {"x": [2, 3]}, {"y": [2, 3], "z": [2, 3]}, types=types)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kserve")


def written(folder: Path, name: str, model: onnx.ModelProto, **options: Any) -> Path:
    module = collage.compile(model, db=folder / "db", **{**QUICK, **options})
    module.save(folder / f"{name}.collage")
    return folder / f"{name}.collage"


@pytest.fixture(scope="module")
def table(folder: Path) -> Iterator[Served]:
    with served(written(folder, "trees", trees(texts=True))) as found:
        yield found


@pytest.fixture(scope="module")
def fixed_file(folder: Path) -> Path:
    return written(folder, "fixed", two_inputs(), backends="onnxruntime,tvm")


@pytest.fixture(scope="module")
def fixed(fixed_file: Path) -> Iterator[Served]:
    with served(fixed_file) as found:
        yield found


@pytest.fixture(scope="module")
def joined(fixed_file: Path) -> Iterator[Served]:
    with served(fixed_file, "--max-batch", "4", "--max-wait-ms", "100") as found:
        yield found


@pytest.fixture(scope="module")
def http() -> Any:
    return pytest.importorskip("tritonclient.http", reason="tritonclient is missing: pip install 'tritonclient[http]'")


def reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))


def infer(server: Served, *inputs: dict[str, Any], **more: Any) -> tuple[int, Any]:
    status, _, answer = server.ask("POST", "/v2/models/m/infer", {"inputs": list(inputs), **more})
    return status, answer


def x_of(array: np.ndarray, name: str = "X", datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}


def test_health_and_metadata(http: Any, table: Served) -> None:
    with closing(http.InferenceServerClient(f"127.0.0.1:{table.port}")) as client:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("m") and client.is_model_ready("m", "1")
        assert not client.is_model_ready("other") and not client.is_model_ready("m", "2")
        assert client.get_server_metadata()["version"] == collage.__version__
        about = client.get_model_metadata("m")
        assert about["name"] == "m" and about["versions"] == ["1"]
        assert about["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, COLUMNS]}]
        assert [(each["name"], each["datatype"], each["shape"]) for each in about["outputs"]] == [
            ("label", "BYTES", [-1]),
            ("probabilities", "FP32", [-1, 3]),
        ]
        assert client.get_model_metadata("m", "1") == about
        assert client.get_model_repository_index()[0]["state"] == "READY"


@pytest.mark.parametrize("binary", [True, False])
def test_infer_as_tritons_documentation_writes_it(http: Any, table: Served, binary: bool) -> None:
    client = http.InferenceServerClient(url=f"127.0.0.1:{table.port}")
    data = rows(5, seed=3)
    inputs = [http.InferInput("X", [5, COLUMNS], "FP32")]
    inputs[0].set_data_from_numpy(data, binary_data=binary)
    outputs = [
        http.InferRequestedOutput("probabilities", binary_data=binary),
        http.InferRequestedOutput("label", binary_data=binary),
    ]
    results = client.infer("m", inputs, outputs=outputs, request_id="17", parameters={"mine": "yes"})
    label, probabilities = reference(trees(texts=True), {"X": data})
    np.testing.assert_allclose(results.as_numpy("probabilities"), probabilities, rtol=1e-5)
    texts = [each.decode() if isinstance(each, bytes) else each for each in results.as_numpy("label")]
    assert texts == label.tolist()
    answer = results.get_response()
    assert answer["id"] == "17" and answer["parameters"]["mine"] == "yes" and answer["model_version"] == "1"
    results = client.infer("m", inputs, model_version="1")  # all outputs, in bytes
    np.testing.assert_allclose(results.as_numpy("probabilities"), probabilities, rtol=1e-5)
    results = client.infer("m", inputs, outputs=outputs[:1])
    assert results.as_numpy("label") is None
    for algorithm in ("gzip", "deflate"):
        results = client.infer("m", inputs, request_compression_algorithm=algorithm)
        np.testing.assert_allclose(results.as_numpy("probabilities"), probabilities, rtol=1e-5)
    client.close()


def test_async_infer(http: Any, table: Served) -> None:
    client = http.InferenceServerClient(url=f"127.0.0.1:{table.port}", concurrency=4)
    given = [rows(count, seed=count) for count in range(1, 9)]
    asked = []
    for data in given:
        each = http.InferInput("X", data.shape, "FP32")
        each.set_data_from_numpy(data)
        asked.append(client.async_infer("m", [each]))
    for data, each in zip(given, asked, strict=True):
        wanted = reference(trees(texts=True), {"X": data})[1]
        np.testing.assert_allclose(each.get_result().as_numpy("probabilities"), wanted, rtol=1e-5)
    client.close()


def test_errors_reach_the_client(http: Any, table: Served) -> None:
    client = http.InferenceServerClient(url=f"127.0.0.1:{table.port}")
    for name, shape, datatype, words in (
        ("X", (2, COLUMNS + 1), np.float32, "has 5 columns, the model takes 4"),
        ("X", (2, COLUMNS), np.float64, "datatype FP64, and the model takes FP32"),
        ("Z", (2, COLUMNS), np.float32, "unknown input: Z. The model takes: X"),
    ):
        each = http.InferInput(name, shape, "FP64" if datatype == np.float64 else "FP32")
        each.set_data_from_numpy(np.zeros(shape, datatype))
        with pytest.raises(http.InferenceServerException, match=words):
            client.infer("m", [each])
    with pytest.raises(http.InferenceServerException, match=r"unknown model: other. This server has m"):
        client.infer("other", [each])
    with pytest.raises(http.InferenceServerException, match=r"unknown version of m: 3. There is 1"):
        client.get_model_metadata("m", "3")
    client.close()


def test_rows_and_numbers_that_are_none(table: Served) -> None:
    for count in (0, 1, 2000):
        status, answer = infer(table, x_of(rows(count)))
        assert status == 200 and [each["shape"] for each in answer["outputs"]] == [[count], [count, 3]]
    status, answer = infer(table, {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [None, 1, 2, 3]})
    wanted = reference(trees(texts=True), {"X": np.array([[np.nan, 1, 2, 3]], np.float32)})
    assert status == 200 and answer["outputs"][0]["data"] == wanted[0].tolist()
    text = json.dumps({"inputs": [x_of(np.full((1, 4), np.nan, np.float32))]})
    assert "NaN" in text and table.ask("POST", "/v2/models/m/infer", text.encode())[0] == 200


def test_statuses(table: Served) -> None:
    path = "/v2/models/m/infer"
    for method, target, body, status, words in (
        ("GET", "/v3", None, 404, "not found"),
        ("GET", path, None, 405, "method not allowed"),
        ("POST", path, b"{", 400, "no JSON"),
        ("POST", path, b"", 400, "no JSON"),
        ("POST", "/v2/models/other/infer", {}, 404, "unknown model"),
        ("POST", "/v2/models/m/versions/2/infer", {}, 404, "unknown version"),
        ("POST", path, b" " * ((64 << 20) + 1), 413, "more than"),
        ("POST", path, b" " * ((16 << 20) + 1), 413, "send its tensors in binary"),
    ):
        found, headers, answer = table.ask(method, target, body)
        assert found == status and words in answer["error"] and "x-request-id" in headers, answer
    assert table.ask("GET", "/v2/health/ready")[0] == 200


def test_packed_bodies(table: Served) -> None:
    def ask(body: bytes, encoding: str) -> tuple[int, Any]:
        with closing(table.connect()) as connection:
            connection.request("POST", "/v2/models/m/infer", body, {"Content-Encoding": encoding})
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    body = json.dumps({"inputs": [x_of(rows(1))]}).encode()
    assert ask(gzip.compress(body), "gzip")[0] == 200
    assert ask(gzip.compress(body)[:-9], "gzip")[0] == 400
    assert ask(body, "gzip")[0] == 400
    assert ask(body, "br")[0] == 415
    assert ask(gzip.compress(bytes(65 << 20)), "gzip")[0] == 413


def test_metrics(fixed_file: Path) -> None:
    with served(fixed_file) as server:
        good = x_of(np.zeros((4, 8), np.float32), "x"), x_of(np.zeros((4, 4), np.float32), "shift")
        for _ in range(3):
            assert infer(server, *good)[0] == 200
        assert infer(server)[0] == 400
        text = server.ask("GET", "/metrics")[2]
        for line in (
            'collage_requests_total{status="200"} 3.0',
            'collage_requests_total{status="400"} 1.0',
            'collage_http_errors_total{status="400"} 1.0',
            "collage_requests_running 0.0",
            "collage_request_seconds_count 3.0",
        ):
            assert line in text
        assert server.end(signal.SIGINT) == 0


def test_access_log(fixed_file: Path) -> None:
    with served(fixed_file, "--access-log") as server:
        id = server.ask("GET", "/v2/models/m")[1]["x-request-id"]
        with closing(server.connect()) as connection:
            connection.request("POST", "/v2/none%0Awhere", b"{}", {"X-Request-Id": "a\x1b[31mb"})
            assert connection.getresponse().status == 404
        assert server.end() == 0
        lines = server.log.read_text().splitlines()
    assert re.fullmatch(rf"127\.0\.0\.1 GET /v2/models/m 200 \d+\.\d ms {id}", lines[-2]), lines
    assert re.fullmatch(r"127\.0\.0\.1 POST /v2/none%0Awhere 404 \d+\.\d ms a.*b", lines[-1]), lines
    assert "\x1b" not in lines[-1]


def test_two_inputs(fixed: Served) -> None:
    rng = np.random.default_rng()
    x, shift = rng.normal(size=(4, 8)).astype(np.float32), rng.normal(size=(4, 4)).astype(np.float32)
    status, answer = infer(fixed, x_of(shift, "shift"), x_of(x, "x"), outputs=[{"name": "best"}, {"name": "y"}])
    y, best = reference(two_inputs(), {"x": x, "shift": shift})
    assert status == 200 and answer["outputs"][0]["data"] == best.ravel().tolist()
    np.testing.assert_allclose(answer["outputs"][1]["data"], y.ravel(), rtol=1e-4, atol=1e-5)
    status, answer = infer(fixed, x_of(shift, "shift"), x_of(x[:2], "x"))
    assert status == 400 and "input x has shape 2x8, the module was compiled for 4x8" in answer["error"]


def test_clients_are_joined(joined: Served) -> None:
    assert joined.ask("GET", "/v2/models/m")[2]["inputs"][0]["shape"] == [-1, 8]

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        count = 1 + seed % 3
        x, shift = rng.normal(size=(count, 8)).astype(np.float32), rng.normal(size=(count, 4)).astype(np.float32)
        if seed % 5 == 4:
            status, answer = infer(joined, x_of(x, "x"), x_of(shift[:0], "shift"))
            assert status == 400 and "different numbers of rows" in answer["error"]
            return
        status, answer = infer(joined, x_of(x, "x"), x_of(shift, "shift"), id=str(seed))
        assert status == 200 and answer["id"] == str(seed)
        padded = [np.concatenate([each, np.zeros((4 - count, each.shape[1]), np.float32)]) for each in (x, shift)]
        y = reference(two_inputs(), {"x": padded[0], "shift": padded[1]})[0][:count]
        np.testing.assert_allclose(answer["outputs"][0]["data"], y.ravel(), rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(24)))
    status, answer = infer(joined, x_of(np.zeros((5, 8), np.float32), "x"), x_of(np.zeros((5, 4), np.float32), "shift"))
    assert status == 400 and "5 rows, and the module takes from 1 to 4" in answer["error"]


def test_texts_as_inputs(http: Any, folder: Path) -> None:
    with served(written(folder, "pipeline", pipeline())) as server:
        client = http.InferenceServerClient(url=f"127.0.0.1:{server.port}")
        age, city = np.array([[30], [np.nan]], np.float32), np.array([["oslo"], ["nowhere ä"]], object)
        wanted = reference(pipeline(), {"age": age, "city": city})[0]
        for binary in (True, False):
            inputs = [http.InferInput("age", [2, 1], "FP32"), http.InferInput("city", [2, 1], "BYTES")]
            inputs[0].set_data_from_numpy(age)
            inputs[1].set_data_from_numpy(city, binary_data=binary)
            np.testing.assert_allclose(client.infer("m", inputs).as_numpy("y"), wanted, rtol=1e-5)
        client.close()
        status, answer = infer(server, x_of(age, "age"), {**x_of(age, "city", "BYTES"), "data": ["kiel"]})
        assert status == 400 and "has 1 elements" in answer["error"]
        status, answer = infer(
            server, x_of(age, "age"), {"name": "city", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
        )
        assert status == 400 and "different numbers of rows: age 2, city 1" in answer["error"]


def test_narrow_types(http: Any, folder: Path) -> None:
    with served(written(folder, "narrow", narrow())) as server:
        client = http.InferenceServerClient(url=f"127.0.0.1:{server.port}")
        assert [each["datatype"] for each in client.get_model_metadata("m")["outputs"]] == ["FP16", "BF16"]
        x = np.random.default_rng().normal(size=(2, 3)).astype(np.float16)
        given = http.InferInput("x", [2, 3], "FP16")
        given.set_data_from_numpy(x)
        found = client.infer("m", [given])
        np.testing.assert_array_equal(found.as_numpy("y"), -x)
        np.testing.assert_allclose(found.as_numpy("z").astype(np.float32), x.astype(np.float32), rtol=1e-2)
        client.close()
        status, answer = infer(server, x_of(x, "x", "FP16"))
        assert status == 200
        np.testing.assert_array_equal(np.array(answer["outputs"][0]["data"], np.float16), -x.ravel())


def test_outputs_that_are_no_tensors(folder: Path) -> None:
    with served(written(folder, "maps", trees(zipmap=True))) as server:
        assert "outputs that are no tensors are not served: probabilities" in server.log.read_text()
        assert [each["name"] for each in server.ask("GET", "/v2/models/m")[2]["outputs"]] == ["label"]
        assert infer(server, x_of(rows(2)))[0] == 200
        status, answer = infer(server, x_of(rows(2)), outputs=[{"name": "probabilities"}])
        assert status == 400 and "output probabilities is no tensor" in answer["error"]


def in_flight(server: Served) -> tuple[threading.Thread, list[Any]]:
    """A request that waits for others, and a list that gets its answer."""
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(
                infer(server, x_of(np.zeros((1, 8), np.float32), "x"), x_of(np.zeros((1, 4), np.float32), "shift"))
            )
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    server.wait_for("requests_running", 1)
    time.sleep(0.2)
    return thread, found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_answer_what_is_in_flight(fixed_file: Path, number: int) -> None:
    with served(fixed_file, "--max-batch", "4", "--max-wait-ms", "60000") as server:
        thread, found = in_flight(server)
        begin_s = time.monotonic()
        assert server.end(number) == 0
        thread.join()
        assert found[0][0] == 200 and time.monotonic() - begin_s < 10
        assert "Traceback" not in server.log.read_text()


def loop() -> onnx.ModelProto:
    """A model that runs as many times as its input says."""
    state = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (("go", TensorProto.BOOL, []), ("a", TensorProto.FLOAT, [4, 256]))
    ]
    after = [
        helper.make_tensor_value_info("go2", TensorProto.BOOL, []),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, [4, 256]),
    ]
    nodes = [helper.make_node("Identity", ["go"], ["go2"]), helper.make_node("Tanh", ["a"], ["b"])]
    body = helper.make_graph(nodes, "body", [helper.make_tensor_value_info("i", TensorProto.INT64, []), *state], after)
    return make_model(
        [helper.make_node("Loop", ["n", "true", "x"], ["y"], body=body)],
        {"n": [], "x": [4, 256]},
        {"y": [4, 256]},
        {"true": np.array(True)},
        types={"n": TensorProto.INT64},
    )


@pytest.mark.parametrize("options", [(), ("--drain-seconds", "0.5")])
def test_a_call_that_does_not_end(folder: Path, options: tuple[str, ...]) -> None:
    """The second signal, or the end of the time to drain, ends the server in the middle of a call."""
    x = np.zeros((4, 256), np.float32)
    path = written(folder, "loop", loop(), backends="onnxruntime", inputs={"n": np.array(3), "x": x})
    with served(path, *options) as server:
        asked = x_of(np.array(1 << 40), "n", "INT64"), x_of(x, "x")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(infer, server, *asked)
            server.wait_for("requests_running", 1)
            time.sleep(0.5)
            assert server.ask("GET", "/v2/health/live")[0] == 200
            begin_s = time.monotonic()
            server.process.send_signal(signal.SIGINT)
            if not options:
                time.sleep(0.5)
                server.process.send_signal(signal.SIGINT)
            assert server.process.wait(20) == 0 and time.monotonic() - begin_s < 10
            assert answer.result()[0] in (500, 503)  # the call fails, or the server has no time for it any more


def test_what_a_server_imports() -> None:
    code = "import sys, collage.serve.kserve.server; print({'onnx', 'tvm', 'torch', 'starlette'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "set()", done.stderr


def test_too_many_requests(fixed_file: Path) -> None:
    with served(fixed_file, "--max-batch", "4", "--max-wait-ms", "60000", "--max-waiting", "1") as server:
        thread, found = in_flight(server)
        status, headers, answer = server.ask("POST", "/v2/models/m/infer", {})
        assert status == 429 and headers["retry-after"] == "1" and "1 requests are open" in answer["error"]
        server.end()
        thread.join()
        assert found[0][0] == 200


def test_a_client_that_leaves(joined: Served) -> None:
    body = json.dumps({"inputs": [x_of(np.zeros((1, 8), np.float32), "x")]}).encode()
    with socket.create_connection(("127.0.0.1", joined.port)) as client:
        head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body[:-5])
        joined.wait_for("requests_running", 1)
    joined.wait_for("requests_running", 0)


def test_what_cannot_be_served(folder: Path, fixed_file: Path, tmp_path: Path) -> None:
    fails(2, "serve", tmp_path, "--replicas", "2", "--access-log", words=("--access-log: for one process",))
    (tmp_path / "text.collage").write_text("no module")
    fails(1, "serve", tmp_path / "text.collage", words=("is no module file",))
    fails(1, "serve", tmp_path / "none.collage", words=("there is no", "or a module"))
    onnx.save_model(trees(), str(tmp_path / "trees.onnx"))
    fails(1, "serve", tmp_path / "trees.onnx", words=("is not compiled", "collage compile "))
    fails(2, "serve", fixed_file, "--policy", "orca", words=("--policy: for a decoder, and", "is a module"))
    fails(2, "serve", fixed_file, "--max-wait-ms", "3", words=("--max-wait-ms is for --max-batch",))
    fails(2, "serve", fixed_file, "--name", "a/b", words=("--name",))
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        fails(1, "serve", fixed_file, "--port", port, words=("cannot listen on", "--port"))
    one = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": [1, 4]}, {"y": [1, 4]})
    fails(
        2, "serve", written(folder, "one", one), "--port", "0", "--max-batch", "4", words=("the module takes one row",)
    )
