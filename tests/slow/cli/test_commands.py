"""The top of the command line, and the commands about the installation."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest

import collage as package
from collage.cli import doctor_checks as doctor
from collage.measure_db.database import Database
from tests.helpers.cli.helpers import collage, fails, json_of, succeeds
from tests.helpers.cuda_driver import Driver, no_driver, pretend


def test_version_and_module() -> None:
    assert succeeds("--version").strip() == f"collage {package.__version__}"
    done = subprocess.run([sys.executable, "-m", "collage", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"collage {package.__version__}"


def test_nothing_heavy_is_imported_for_help() -> None:
    code = (
        "import sys\n"
        "from collage.cli.main import main\n"
        "heavy = {'tvm', 'onnx', 'onnxruntime', 'openvino', 'numpy', 'rich'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_command() -> None:
    fails(2, "compil", words=("compil", "collage --help"))
    assert collage().exit_code == 2


def test_backends() -> None:
    found = {each["name"]: each for each in json_of("backends", "--json")["backends"]}
    assert {"tvm", "onnxruntime", "openvino", "tensorrt"} <= set(found)
    assert found["onnxruntime"]["available"]
    assert found["onnxruntime"]["kind"] == "graph engine"
    assert all(each["available"] or each["reason"] for each in found.values())
    assert found["tensorrt"]["available"] or "needs an NVIDIA GPU" in found["tensorrt"]["reason"]
    assert "onnxruntime" in succeeds("backends")
    assert "native core" in succeeds("backends")


def test_db_stats_of_no_database(tmp_path: Path) -> None:
    fails(1, "db", "stats", "--db", tmp_path / "no.sqlite", words=("no.sqlite", "collage compile"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "bad.sqlite").write_bytes(b"no database " * 500)
    fails(1, "db", "stats", "--db", tmp_path / "bad.sqlite", words=("bad.sqlite", "--db"))


def test_names_in_a_database_of_others_do_not_reach_the_terminal_as_commands(tmp_path: Path) -> None:
    path = tmp_path / "foreign.sqlite"
    with Database(path):
        pass
    row = "INSERT INTO kernels (digest, backend, backend_version, settings, threads, hardware, tvm_version, created, "
    row += "description, rejection, gate) VALUES (?, ?, '1', '', 1, ?, '1', 0, '', ?, 1)"
    with closing(sqlite3.connect(path)) as foreign, foreign:
        foreign.execute(row, ("a", "\x1b[2Jmkl\n999 on gold", "cpu\x1b]0;title\x07\nrejected: 0", "cra\x9bshed"))
        foreign.execute(row, ("b", b"\xff", "cpu\u202e", None))
    text = succeeds("db", "stats", "--db", path)
    assert "mkl" in text and "title" in text and "shed" in text
    assert not [
        each for each in text if each != "\n" and not each.isprintable() and each != "\N{REPLACEMENT CHARACTER}"
    ]
    assert not [line for line in text.splitlines() if line.startswith(("999 on gold", "rejected: 0"))]
    assert set(json_of("db", "stats", "--db", path, "--json")["rejections"].values()) == {1}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets Collage look like an installed package with these requirements, whether it is one or not."""

    def install(*requirements: str) -> None:
        folder = tmp_path / "site" / "collage_compiler-1.dist-info"
        folder.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", "Name: collage-compiler", "Version: 1", "Requires-Python: >=3.10,<3.14"]
        lines += [f"Requires-Dist: {each}" for each in requirements]
        (folder / "METADATA").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(folder.parent)

    return install


def test_doctor(tmp_path: Path, installed: Callable[..., None]) -> None:
    installed("apache-tvm==0.27.*", "onnx>=1.18,<1.24", "click>=8")
    result = collage("doctor", "--db", tmp_path / "db.sqlite", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 1)
    checks = {each["name"]: each for each in found["checks"]}
    assert {"Python", "apache-tvm", "onnx", "CPU", "load", "cache folder", "database"} <= set(checks)
    assert "click" not in checks
    for each in checks.values():
        assert each["status"] in ("ok", "warn", "fail")
        assert each["fix"] or each["status"] == "ok"
    assert [checks[name]["status"] for name in ("Python", "apache-tvm", "onnx")] == ["ok"] * 3
    assert "Python" in succeeds("doctor", "--db", tmp_path / "db.sqlite")


def test_doctor_tells_of_versions(
    tmp_path: Path, installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("onnx>=99", "onnxruntime<2", 'openvino>=2026.4,<2026.5; extra == "cpu"')
    found_version = metadata.version

    def version(name: str) -> str:
        if name in ("onnxruntime", "openvino"):
            raise metadata.PackageNotFoundError(name)
        return found_version(name)

    monkeypatch.setattr(metadata, "version", version)
    result = collage("doctor", "--db", tmp_path / "db.sqlite", "--json")
    assert result.exit_code == 1
    checks = {each["name"]: each for each in json.loads(result.stdout)["checks"]}
    assert checks["onnx"]["status"] == "warn"
    assert checks["onnx"]["detail"].endswith("is outside the tested range (not tested)")
    assert checks["onnx"]["fix"] == "pip install 'onnx>=99'"
    assert (checks["onnxruntime"]["status"], checks["openvino"]["status"]) == ("fail", "warn")


def test_both_tell_of_a_missing_native_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "Collage's native core cannot be used: it was not built. Install a compiler."
    monkeypatch.setattr("collage.native.library.core_problem", lambda: problem)
    checks = {each["name"]: each for each in json_of("doctor", "--db", tmp_path / "db.sqlite", "--json")["checks"]}
    assert checks["native core"] == {
        "name": "native core",
        "status": "warn",
        "detail": "Collage's native core cannot be used: it was not built",
        "fix": "Install a compiler.",
    }
    assert json_of("backends", "--json")["native_core"] == {"available": False, "reason": problem}


def test_doctor_tells_of_a_damaged_database(tmp_path: Path) -> None:
    (tmp_path / "bad.sqlite").write_bytes(b"no database " * 500)
    result = collage("doctor", "--db", tmp_path / "bad.sqlite", "--json")
    assert result.exit_code == 1
    (found,) = (each for each in json.loads(result.stdout)["checks"] if each["name"] == "database")
    assert found["status"] == "fail"


def test_a_reader_that_goes_away_is_no_error(module: Path) -> None:
    command = f"'{sys.executable}' -m collage show '{module}' --json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_an_unexpected_failure_is_one_line_too(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("collage.module.file.read_summary", broken)
    fails(1, "show", module, words=("RuntimeError: two lines", "--traceback"))


def test_what_a_gpu_would_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, no_driver)
    checks = json_of("doctor", "--db", tmp_path / "db.sqlite", "--json")["checks"]
    (found,) = (each for each in checks if each["name"] == "GPU")
    assert found["status"] == "ok"
    assert "no NVIDIA driver" in found["detail"] and "pip install 'collage-compiler[gpu]'" in found["detail"]
    listed = {each["name"]: each for each in json_of("backends", "--json")["backends"]}
    assert not listed["tvm_cuda"]["available"]
    for words in ("no NVIDIA driver", "CUDA 13.0 or later", "'collage-compiler[gpu]'"):
        assert words in listed["tvm_cuda"]["reason"]


@pytest.mark.parametrize(
    ("driver", "status", "detail", "fix"),
    [
        (Driver(1), "ok", "NVIDIA Made-up 1 (sm_90), 80.0 GiB", ""),
        (Driver(0), "warn", "the NVIDIA driver finds no GPU", "nvidia-smi"),
        (Driver(1, version=12040), "warn", "the NVIDIA driver is for CUDA 12.4", "CUDA 13.0"),
    ],
)
def test_doctor_tells_of_a_gpu(
    driver: Driver, status: str, detail: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda name: driver)
    found = doctor.gpu_check()
    assert (found.status, found.detail) == (status, detail)
    assert fix in found.fix


def test_a_compile_for_a_gpu_that_is_not_there(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, no_driver)
    out = tmp_path / "net.collage"
    words = ("nothing here computes on cuda: there is no NVIDIA driver", "--device cpu or auto")
    fails(2, "compile", network, "-o", out, "--device", "cuda", "--quiet", words=words)
    fails(2, "compile", network, "-o", out, "--device", "tpu", "--quiet", words=("Valid: auto, cpu, cuda.",))
    assert not out.exists()
