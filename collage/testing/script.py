"""Scripts that check again what was found: standalone Python programs, with the model inside."""

from __future__ import annotations

import base64
import inspect
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

import onnx

from collage.backends.base import Backend
from collage.measure.worker.serialisation import pickle_message
from collage.testing.finding import Finding
from collage.testing.protocol import Claim

_PRINTED_CHARS = 3000
_WIDTH = 110
_TRIES = 20


def script_of(
    finding: Finding, backend: Backend, model: onnx.ModelProto | None, claim: Claim | None, limit_s: float
) -> str:
    """A program that prints the finding, and ends with status 1, as long as it is there.

    A kernel may take ``limit_s`` seconds. Without a ``claim`` the program is about the whole ``model``, and without a
    model about the backend by itself.
    """
    lines = ["import sys", *_imports(backend), ""]
    if model is None:
        call = f"check_backend(backend, only=[{finding.kind!r}], models=[])"
        lines[1:1] = ["", "from collage.testing import check_backend"]
    else:
        chosen = "" if claim is None else f", nodes={claim.where.nodes}, variant={claim.where.variant!r}"
        threads = "" if finding.where is None else f", threads={finding.where.threads}"
        limit = f", time_limit_s={limit_s:g}" if finding.kind == "hang" else ""
        call = f"check_kernel(backend, model, only=[{finding.kind!r}]{chosen}{threads}{limit})"
        lines[:1] = ["import base64", "import sys", "import zlib", "", "import onnx", ""]
        lines.insert(6, "from collage.testing import check_kernel")
        lines += [*_literal("MODEL", zlib.compress(model.SerializeToString(deterministic=True), 9)), ""]
        lines += ["model = onnx.load_model_from_string(zlib.decompress(base64.b85decode(MODEL)))"]
    lines += [*_tries(call, finding), "for each in found:", "    print(each)", "sys.exit(1 if found else 0)", ""]
    return "\n".join([*_heading(finding, model), *lines])


def whole_script(finding: Finding, backend: Backend) -> str:
    """The same, of what shows only on all models of the catalogue."""
    lines = ["import sys", "", "from collage.testing import check_backend", *_imports(backend), ""]
    lines += [f"found = check_backend(backend, only=[{finding.kind!r}])", "for each in found:", "    print(each)"]
    return "\n".join([*_heading(finding, None), *lines, "sys.exit(1 if found else 0)", ""])


def _tries(call: str, finding: Finding) -> list[str]:
    if finding.kind != "concurrent":
        return [f"found = {call}"]
    again = [
        f"for _ in range({_TRIES}):  # the calls of two threads do not meet in each try",
        f"    found = found or {call}",
    ]
    return ["found = []", *again]


def _heading(finding: Finding, model: onnx.ModelProto | None) -> Iterator[str]:
    yield '"""' + fill(_quoted(str(finding)), _WIDTH)
    if model is not None:
        printed = (
            re.sub(r"\{[^{}]{120,}\}", "{...}", onnx.printer.to_text(model)).replace("\\", "\\\\").replace('"""', "'''")
        )
        yield ""
        yield printed if len(printed) < _PRINTED_CHARS else printed[:_PRINTED_CHARS] + " ..."
    yield '"""'
    yield ""


def _quoted(text: str) -> str:
    """The text for the inside of a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _imports(backend: Backend) -> list[str]:
    """The lines that make ``backend``: an import of its class, or the pickle of what cannot be imported."""
    kind = type(backend)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    named = getattr(module, kind.__qualname__, None) is kind and kind.__module__ != "__main__"
    wanted = [
        each
        for each in inspect.signature(kind).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if file is not None and named and not wanted and not (vars(backend) and _can_be_pickled(backend)):
        made = f"backend = {kind.__qualname__}()"
        return [*_folder(Path(file), kind.__module__), f"from {kind.__module__} import {kind.__qualname__}", "", made]
    return [
        "import base64",
        "import pickle",
        "",
        *_literal("BACKEND", pickle_message(backend)),
        "backend = pickle.loads(base64.b85decode(BACKEND))",
    ]


def _can_be_pickled(backend: Backend) -> bool:
    try:
        return bool(pickle_message(backend))
    except Exception:  # the backend's own code
        return False


def _folder(file: Path, module: str) -> list[str]:
    """The line that makes the module importable, if it is not in a place where packages are installed."""
    parts = module.split(".")
    folder = file.resolve().parents[len(parts) - (file.name != "__init__.py")]
    if "site-packages" in folder.parts or module.startswith("collage."):
        return [""]
    return ["", f"sys.path.insert(0, {str(folder)!r})"]


def _literal(name: str, data: bytes) -> list[str]:
    text = base64.b85encode(data).decode()
    pieces = [text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH)]
    return [f"{name} = (", *(f"    {piece!r}" for piece in pieces), ")"]
