"""What the README and the documents show works: their Python runs, their commands, options and files exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from click import Command, Context, Group
from click.testing import CliRunner

from collage.cli.main import main
from scripts.lib.bench.main import main as bench
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small
from tests.helpers.documents import DYNAMIC, PAGES, ROOT, blocks, commands, image_model, name_of

DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md"]
TREES = "docs/tables.md"
WINDTUNNEL = "docs/windtunnel.md"
GRAPHPIPE = "docs/graphpipe.md"
USAGE = "docs/usage.md"
"""The documents whose examples train models of their own."""
DECODERS = "docs/decoders.md"
QUESTIONS = "docs/questions.md"
"""The document that compiles a decoder."""

_REGISTER = """
from torch._dynamo.backends import registry
from collage.torch_backend import backend
if "collage" not in registry.list_backends():  # the installed project is older than its entry point
    registry.register_backend(backend.compile_subgraph, name="collage")
"""


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


@pytest.mark.parametrize("name", [name_of(page) for page in PAGES if blocks("python", page)])
def test_the_python_of_a_document_runs(name: str, tmp_path: Path) -> None:
    """All of its examples, one after another, in a folder that has the files they name; then the module they made."""
    onnx.save_model(image_model(dynamic=name in DYNAMIC), str(tmp_path / "model.onnx"))
    if name == DECODERS:
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
        (cluster,) = blocks("toml", ROOT / name)
        (tmp_path / "cluster.toml").write_text(cluster)
        parts.append(
            "assert '<svg' in found._repr_html_()\n"
            "network, batch, optimizer = build()\nnetwork(*batch(0, 8)).backward()\n"
            "optimizer(network.parameters()).step()"
        )
    elif name == USAGE:
        pytest.importorskip("torch")
        pytest.importorskip("onnxscript")
        pytest.importorskip("skl2onnx")
        parts.insert(0, _REGISTER)
        parts.append(
            "with torch.no_grad():\n"
            "    torch.testing.assert_close(module(x), network(x), rtol=1e-3, atol=1e-4)\n"
            "    torch.testing.assert_close(fast(x), network(x), rtol=1e-3, atol=1e-4)\n"
            "np.testing.assert_array_equal(model.predict(X), pipeline.predict(X))"
        )
    elif name == DECODERS:
        parts.append("assert logits.shape == (1, 256) and np.isfinite(logits).all()\nassert len(answers) == 4")
    elif name == QUESTIONS:
        parts.append("assert [*module.outputs][-1] == value.name")
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
    """The commands that begin so, of the documents and of the notes, without what they are piped into."""
    pages = [*DOCUMENTS, *sorted((ROOT / "docs" / "notes").glob("*.md"))]
    found = [part for page in pages for line in commands(page) for part in re.split(r" (?:&&|\|) ", line)]
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


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_scripts_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for script in re.findall(r"scripts/(\w+)", text):
        assert (ROOT / "scripts" / script).exists(), script
    for name in re.findall(r"scripts/bench ([a-z][a-z-]*)", text):
        assert bench.get_command(Context(bench), name) is not None, name
