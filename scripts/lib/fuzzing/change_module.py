"""Changed module files whose checksums and names are right again, so that only what they say is wrong.

The code in TVM's artifacts and the models in those of engines are left alone: they are programs, and a changed one
may do anything. What surrounds them is not.
"""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from collage.module.archive import NewArchive
from collage.schedule.read_program import read_program
from scripts.lib.fuzzing.change_json import change, flip

_PROGRAMS = frozenset({"tvm"})
_ENGINES = frozenset({"onnxruntime", "openvino", "tensorrt"})
_CODE = frozenset({"code", "mcpu", "revision"})


@dataclass
class Contents:
    """The contents of a module file: its manifest, its entries by name, and the kinds of its artifacts by name."""

    manifest: dict[str, Any]
    entries: dict[str, bytes]
    kinds: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(data: bytes) -> Contents:
        """The contents of a good file."""
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        found = Contents(json.loads(entries.pop("manifest.json")), entries)
        for module in found.manifest["modules"]:
            regions = read_program(module["program"]).executed  # all but views have an artifact
            for names, region in zip(module["artifacts"], regions, strict=False):
                for name in filter(None, (names.get("bytes"), names.get("head"))):
                    found.kinds[name] = region.backend
        return found

    def write(self) -> bytes:
        """The contents as a file. Entries, and references to them in the manifest, are named by digests."""
        stream = io.BytesIO()
        with NewArchive(stream) as archive:
            names = {
                name: archive.put(name.partition("/")[0], data) for name, data in self.entries.items() if "/" in name
            }
            archive.finish(_renamed(self.manifest, names))
        return stream.getvalue()


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def change_module(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """The file with one or two changes, and a description of these."""
    if rng.random() < 0.04:
        return flip(data, rng), "bits of the file"
    contents = Contents.read(data)
    said = [_change(contents, rng)]
    if rng.random() < 0.2:
        try:
            said.append(_change(contents, rng))
        except (LookupError, TypeError, AttributeError):  # the first one has left too little
            said.append("nothing")
    return contents.write(), "; ".join(said)


def _change(contents: Contents, rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.35:
        return _change_manifest(contents, rng)
    if draw < 0.8:
        return _change_head(contents, rng) or _change_manifest(contents, rng)
    if draw < 0.9:
        return _change_array(contents, rng) or _change_manifest(contents, rng)
    return _swap(contents, rng) or _change_manifest(contents, rng)


def _change_manifest(contents: Contents, rng: random.Random) -> str:
    part = rng.choice(["program", "program", "program", "report", "rest"])

    def spare(path: tuple[Any, ...]) -> bool:
        inside = path[2] if len(path) > 2 and path[0] == "modules" else ""
        if path == ("collage",) or path == ("format",):
            return True
        if part == "rest":
            return inside in ("program", "report")
        return inside != part

    contents.manifest, said = change(contents.manifest, rng, spare=spare)
    return f"manifest {said}"


def _change_head(contents: Contents, rng: random.Random) -> str:
    """Change a number, or a bit, in an artifact outside its arrays. Returns a description; "" where there is none."""
    heads = [name for name, kind in contents.kinds.items() if kind not in _ENGINES and contents.entries.get(name)]
    if not heads:
        return ""
    name = rng.choice(heads)
    data, program = contents.entries[name], contents.kinds[name] in _PROGRAMS
    if not program and rng.random() < 0.1:
        contents.entries[name] = flip(data, rng)
        return f"bits of the head of {contents.kinds[name]}"
    try:
        head = json.loads(data)
    except ValueError:
        return ""
    changed, said = change(head, rng, spare=lambda path: program and path[0] in _CODE)
    try:
        contents.entries[name] = json.dumps(changed).encode()
    except (TypeError, ValueError):
        return ""
    return f"head of {contents.kinds[name]} {said}"


def _change_array(contents: Contents, rng: random.Random) -> str:
    arrays = [name for name in contents.entries if name.startswith("arrays/")]
    if not arrays:
        return ""
    name = rng.choice(arrays)
    data = contents.entries[name]
    changes: dict[str, Callable[[], bytes]] = {
        "cut": lambda: data[: rng.randrange(len(data) + 1)],
        "empty": lambda: b"",
        "longer": lambda: data + data,
        "bits": lambda: flip(data, rng) if data else b"\1",
        "odd": lambda: data[:-1],
    }
    kind = rng.choice([*changes])
    contents.entries[name] = changes[kind]()
    return f"array {kind}"


def _swap(contents: Contents, rng: random.Random) -> str:
    """Swap two artifacts, or two arrays."""
    module = rng.choice(contents.manifest["modules"])
    artifacts = module["artifacts"]
    framed = [each for each in artifacts if isinstance(each, dict) and len(each.get("arrays", ())) > 0]
    if framed and rng.random() < 0.5:
        one, other = rng.choice(framed), rng.choice(framed)
        i, j = rng.randrange(len(one["arrays"])), rng.randrange(len(other["arrays"]))
        one["arrays"][i], other["arrays"][j] = other["arrays"][j], one["arrays"][i]
        return "arrays swapped"
    if not isinstance(artifacts, list) or len(artifacts) < 2:
        return ""
    i, j = rng.sample(range(len(artifacts)), 2)
    artifacts[i], artifacts[j] = artifacts[j], artifacts[i]
    return f"artifacts {i} and {j} swapped"
