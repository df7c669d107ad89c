"""What the README and the documents show works: their Python runs, their commands, options and files exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click import Command, Context, Group
from click.testing import CliRunner
from onnx import helper

from collage.cli.main import main
from scripts.lib.bench.main import main as bench
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small
from tests.helpers.models import make_model

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
DYNAMIC = ("docs/serving.md",)
"""Documents that compile the model for several sets of shapes."""
TREES = "docs/tables.md"
WINDTUNNEL = "docs/windtunnel.md"
GRAPHPIPE = "docs/graphpipe.md"
"""The documents whose examples train models of their own."""
DECODERS = ("docs/serving.md",)
"""Documents that compile a decoder, too."""


def blocks(language: str, document: Path = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)


def test_the_backend_of_the_readme_is_measured(network: Path, tmp_path: Path) -> None:
    (code,) = (block for block in blocks("python") if "register_backend" in block)
    arguments = f"{str(network)!r}, db={str(tmp_path / 'db')!r}, backends=['numpy_relu', 'tvm']"
    check = (
        "candidates = [c for node in module.summary()['nodes'] for c in node['candidates']]\n"
        "ours = [c for c in candidates if c['backend'] == 'numpy_relu']\n"
        "assert any('cost_us' in c or 'least_us' in c for c in ours), ours\n"
        "assert any('no kernel for tanh' in c['verdict'] for c in ours), ours\n"
    )
    script = tmp_path / "backend.py"
    script.write_text(code.replace('"model.onnx"', arguments) + check)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))}
    subprocess.run([sys.executable, script], check=True, env=environment)


def image_model(*, dynamic: bool) -> onnx.ModelProto:
    """Scores of an image: a multiplication by a constant, a relu, and the mean of each channel."""
    nodes = [
        helper.make_node("Mul", ["image", "half"], ["scaled"], "scale"),
        helper.make_node("Relu", ["scaled"], ["positive"], "relu"),
        helper.make_node("GlobalAveragePool", ["positive"], ["scores"], "mean"),
    ]
    shape = [1, 3, "height", "width"] if dynamic else [1, 3, 224, 224]
    weights = {"half": np.array(0.5, np.float32)}
    return make_model(nodes, {"image": shape}, {"scores": [1, 3, 1, 1]}, weights)


@pytest.mark.parametrize("name", [name for name in NAMES if blocks("python", ROOT / name)])
def test_the_python_of_a_document_runs(name: str, tmp_path: Path) -> None:
    """All of its examples, one after another, in a folder that has the files they name; then the module they made."""
    onnx.save_model(image_model(dynamic=name in DYNAMIC), str(tmp_path / "model.onnx"))
    if name in DECODERS:
        onnx.save_model(decoder(small(NAMED["gpt2_124m"], 1)), str(tmp_path / "decoder.onnx"))
    parts = [
        "import numpy as np",
        "image = np.full((1, 3, 224, 224), 2, np.float32)",
        *blocks("python", ROOT / name),
    ]
    if name == TREES:
        pytest.importorskip("lightgbm")
        parts.append("np.testing.assert_allclose(module.predict(X), booster.predict(X), rtol=1e-6)")
    elif name == WINDTUNNEL:
        pytest.importorskip("torch")
        parts.append(
            'import collage\nmodule = collage.compile("late.onnx", budget_s=60)\n'
            "found = module.predict_proba({name: other[name][:50] for name in other})\n"
            "np.testing.assert_allclose(found, tunnel.predict_proba(other[:50]), atol=1e-4)"
        )
    elif name == GRAPHPIPE:
        pytest.importorskip("torch")
        parts.append(
            "network, batch, optimizer = build()\nnetwork(*batch(0, 8)).backward()\n"
            "optimizer(network.parameters()).step()"
        )
    else:
        parts += ["found = module(image)", "np.testing.assert_allclose(np.ravel(found), 1, rtol=1e-5)"]
    (tmp_path / "example.py").write_text("\n".join(parts))
    path = os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, **cache},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr


def lines(command: str) -> list[str]:
    found = [line for document in DOCUMENTS for block in blocks("sh", document) for line in block.splitlines()]
    return [line for line in dict.fromkeys(found) if line.startswith(command)]


def options_exist(group: Group, words: list[str]) -> None:
    command: Command | None = group
    while isinstance(command, Group) and words and not words[0].startswith("-"):
        command = command.get_command(Context(command), words.pop(0))
    assert command is not None
    text = CliRunner().invoke(command, ["--help"]).output
    assert "Usage:" in text
    for word in words:
        if word.startswith("-"):
            assert word in text


@pytest.mark.parametrize("line", lines("collage "))
def test_commands_and_options_exist(line: str) -> None:
    options_exist(main, shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("line", lines("scripts/bench "))
def test_benchmarks_and_their_options_exist(line: str) -> None:
    options_exist(bench, shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_scripts_and_links_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for script in re.findall(r"scripts/(\w+)", text):
        assert (ROOT / "scripts" / script).exists(), script
    for name in re.findall(r"scripts/bench ([a-z][a-z-]*)", text):
        assert bench.get_command(Context(bench), name) is not None, name
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert ":" in link or (document.parent / link).exists(), link
