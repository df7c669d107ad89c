"""A process that exports decoders, run by the interpreter that has transformers.

Started by ``scripts.lib.families.processes``, never by hand. It imports nothing of Collage, which that interpreter need
not have. A request has ``family``, ``exporter`` and ``folder``, and its answer ``problem``. The first answer has the
versions of packages, and what cannot be imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scripts.lib.families.forks import serve
from scripts.lib.families.names import MODEL, PACKAGES
from scripts.lib.families.table import FAMILIES, Family

_OPTIMUM_TASK = "text-generation-with-past"
_SLOW = (
    "onnxscript",
    "torch.onnx._internal.exporter._core",
    "optimum.exporters.onnx",
    "transformers.models.auto.modeling_auto",
)
"""What takes long to import, and what exporters need."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SEED = 0
_MOST_CHARACTERS = 160


def main() -> int:
    """Answer requests until there are no more."""
    return serve(lambda: {"versions": versions(), "problem": _imported()}, _export)


def versions() -> Mapping[str, str]:
    """The versions of the packages that exporters need, "" for those that are not installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def _imported() -> str:
    """Import what takes long. Returns what went wrong, or ""."""
    if not all(versions().values()):
        return ""  # the answer tells that anyway
    try:
        for name in _SLOW:
            import_module(name)
    except Exception as error:  # packages that do not fit each other raise whatever they like
        return _text(error)
    return ""


def _export(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Export a decoder. The answer has ``problem``, "" where there is none."""
    (family,) = (each for each in FAMILIES if each.name == request["family"])
    try:
        EXPORTERS[request["exporter"]](_model(family), Path(request["folder"]))
    except Exception as error:  # exporters raise whatever they like
        return {"problem": _text(error)}
    return {"problem": ""}


def _text(error: BaseException) -> str:
    """The error in one line, or what has caused it."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"{type(error).__name__}: {' '.join(_COLOURS.sub('', str(error)).split())}"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS].rstrip()} ..."


def _model(family: Family) -> Any:
    """The family's model in PyTorch, in float32."""
    import torch

    transformers = import_module("transformers")
    config = getattr(transformers, family.config)(**family.fields)
    choice = {"attn_implementation": family.attention} if family.attention else {}
    torch.manual_seed(_SEED)
    model = transformers.AutoModelForCausalLM.from_config(config, **choice).float().eval()
    _draw(model)
    return model


def _draw(model: Any) -> None:
    """Draw weights so that answers tell right from wrong.

    With the small weights that transformers begins with, every token is almost as likely as another, and all keys
    weigh the same. Biases and the weights of norms are moved, since ones and zeros would hide where they are missing.
    """
    import torch

    with torch.no_grad():
        for _, parameter in sorted(dict(model.named_parameters()).items()):
            if parameter.dim() < 2:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.5 / parameter.shape[-1] ** 0.5))


def _by_optimum(model: Any, folder: Path) -> None:
    import_module("optimum.exporters.onnx").onnx_export_from_model(
        model, folder, task=_OPTIMUM_TASK, do_validation=False
    )
    assert (folder / MODEL).exists(), (
        f"optimum wrote {', '.join(sorted(each.name for each in folder.iterdir()))}"
    )


def _by_torch(operator_set: int) -> Callable[[Any, Path], None]:
    def export(model: Any, folder: Path) -> None:
        from scripts.lib.families.torch_export import export_with_cache

        export_with_cache(model, folder / MODEL, operator_set)

    return export


EXPORTERS: Mapping[str, Callable[[Any, Path], None]] = {
    "optimum": _by_optimum,
    "torch-18": _by_torch(18),
    "torch-23": _by_torch(23),
}
"""How a model in PyTorch becomes a file in a folder. The names are those of ``names.EXPORTERS``."""


if __name__ == "__main__":
    sys.exit(main())
