"""Tunnels as files: the network as tensors and JSON, which are data; operators in front as a program beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from collage.core.library_text import library_text
from collage.errors import ModelError, UsageError
from collage.windtunnel.columns import Column
from collage.windtunnel.graph import Translation
from collage.windtunnel.heads import Head
from collage.windtunnel.modules.bayes import Binarise, Distances, Quadratic
from collage.windtunnel.modules.encode import Embed, Lookup, OneHot, Sum
from collage.windtunnel.modules.linear import Linear
from collage.windtunnel.modules.machine import Machine
from collage.windtunnel.modules.part import Concat, Network, Numbers, Part, Select, Step
from collage.windtunnel.modules.scale import Absent, Fill, Normalise, Scale
from collage.windtunnel.modules.trees import Forest
from collage.windtunnel.tune import Epoch

FORMAT = 1
_PARTS: Mapping[str, type[Part]] = {
    each.__name__: each
    for each in (
        *(
            Absent,
            Binarise,
            Concat,
            Distances,
            Embed,
            Fill,
            Forest,
            Linear,
            Lookup,
            Machine,
            Normalise,
            Numbers,
            OneHot,
        ),
        *(Quadratic, Scale, Select, Sum),
    )
}


def front_file(path: Path) -> Path:
    """The file of operators in front."""
    return path.with_name(f"{path.name}.front.joblib")


@dataclass(frozen=True)
class Saved:
    """The content of a file."""

    translation: Translation
    settings: Mapping[str, Any]
    """Of the tunnel."""
    history: Sequence[Epoch]
    is_source: bool
    """Whether the network is the source pipeline's, and was not softened or fine-tuned."""


def save(path: Path, saved: Saved) -> None:
    """Write a network and what belongs to it. Raises ModelError for parts of other classes than this package's."""
    found = saved.translation
    network = found.network
    tensors: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for at, (part, step) in enumerate(zip(network.parts, network.steps, strict=True)):
        kind = type(part).__name__
        if _PARTS.get(kind) is not type(part):
            raise ModelError(f"{step.path} is a {kind} of yours, which WindTunnel cannot save: export it to ONNX.")
        parameters = dict(part.named_parameters(recurse=False))
        constants = dict(part.named_buffers(recurse=False))
        tensors |= {f"{at}.{name}": each.detach() for name, each in (parameters | constants).items()}
        names = {"parameters": [*parameters], "constants": [*constants], "path": step.path, "inputs": step.inputs}
        parts.append({"kind": kind, "settings": part.settings} | names)
    about: dict[str, Any] = {
        "format": FORMAT,
        "parts": parts,
        "columns": [asdict(each) for each in found.columns],
        "head": asdict(found.head),
        "n_features": found.n_features,
        "names": found.names,
        "taken": [found.unstored, found.by_name],
        "history": [asdict(each) for each in saved.history],
        "settings": dict(saved.settings),
        "is_source": saved.is_source,
        "fronts": len(found.fronts),
    }
    torch.save({"about": json.dumps(about), "tensors": tensors}, path)
    if found.fronts:
        import joblib

        joblib.dump(found.fronts, front_file(path))


def load(path: Path, trust: bool) -> Saved:
    """Read a file of ``save``. Raises ModelError for other files, and UsageError for a program without ``trust``."""
    try:
        read = torch.load(path, weights_only=True)
        about = json.loads(read["about"])
        wrong = about["format"] != FORMAT
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or library_text(error)}.") from error
    except Exception as error:  # PyTorch's reader of damaged files raises anything
        raise ModelError(f"{path.name} is no tunnel that Collage has saved, or it is damaged.") from error
    if wrong:
        raise ModelError(f"{path.name} has the format {about['format']}, and this Collage reads {FORMAT}.")
    fronts = _fronts(path, about["fronts"], trust) if about["fronts"] else ()
    try:
        settings = {name: tuple(each) if isinstance(each, list) else each for name, each in about["settings"].items()}
        columns = tuple(Column(**(each | {"keys": tuple(each["keys"])})) for each in about["columns"])
        head = Head(**(about["head"] | {"classes": tuple(about["head"]["classes"])}))
        history = [Epoch(**each) for each in about["history"]]
        network, names = _network(about, read["tensors"]), tuple(about["names"])
        taken = about.get("taken", ())
        translation = Translation(network, columns, fronts, head, int(about["n_features"]), names, *taken)
        return Saved(translation, settings, history, bool(about["is_source"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path.name} is damaged: save it again.") from error


def _network(about: Mapping[str, Any], tensors: Mapping[str, Any]) -> Network:
    parts, steps = [], []
    for at, each in enumerate(about["parts"]):
        part = _PARTS[each["kind"]](
            **{
                "parameters": {name: tensors[f"{at}.{name}"] for name in each["parameters"]},
                "constants": {name: tensors[f"{at}.{name}"] for name in each["constants"]},
            },
            **each["settings"],
        )
        if not isinstance(part, Forest):
            part.cast(torch.float64)  # older files may have float32
        parts.append(part)
        steps.append(Step(each["path"], tuple(each["inputs"])))
    network = Network(parts, steps)
    network.eval()
    return network


def _fronts(path: Path, many: int, trust: bool) -> Any:
    file = front_file(path)
    if not trust:
        raise UsageError(
            f"{file.name} holds operators in front of the network, and is a joblib file. Such files are programs, "
            "which can do anything on this machine: trust=True runs it."
        )
    import joblib

    try:
        found = joblib.load(file)
    except Exception as error:  # it runs the file, which raises anything
        raise ModelError(f"{file.name} cannot be loaded: {library_text(error)}") from error
    if not isinstance(found, tuple) or len(found) != many:
        raise ModelError(f"{file.name} does not belong to {path.name}.")
    return found
