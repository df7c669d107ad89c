"""Models on the Hugging Face Hub: ``hf://owner/name``, or ``hf://owner/name@revision/path/to/model.onnx``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from collage.core.library_text import library_text
from collage.errors import ModelError, UsageError

PREFIX = "hf://"

_PREFERRED = ("model.onnx", "onnx/model.onnx")
_SUFFIX = ".onnx"


def is_address(model: Any) -> bool:
    """Whether it is the address of a model on the Hub."""
    return isinstance(model, str) and model.startswith(PREFIX)


@dataclass(frozen=True)
class Address:
    """A repository, a ``revision`` of it (None for the newest one), and a ``path`` in it ("" if none is named)."""

    repository: str
    revision: str | None
    path: str

    @staticmethod
    def parse(text: str) -> Address:
        """Parse an address. Raises UsageError."""
        owner, _, rest = text.removeprefix(PREFIX).partition("/")
        name, _, path = rest.partition("/")
        name, _, revision = name.partition("@")
        if not owner or not name:
            raise UsageError(f"{text} names no repository: write it as {PREFIX}owner/name, or with the path of a file.")
        if path and not path.endswith(_SUFFIX):
            raise UsageError(f"{text} names no {_SUFFIX} file of the repository.")
        return Address(f"{owner}/{name}", revision or None, path)


def downloaded(address: str, *, quiet: bool = False) -> Path:
    """The ``.onnx`` file of an address in the Hub's cache, with its external data beside it.

    Nothing else is downloaded, and nothing that is in the cache already. If no path is named, it is ``model.onnx``,
    ``onnx/model.onnx``, or the only such file. Raises UsageError for an address that is none or names several files,
    and ModelError if ``huggingface_hub`` is missing or cannot load the file.
    """
    found = Address.parse(address)
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise ModelError(
            f"{address} needs the library huggingface_hub: pip install 'collage-compiler[hub]', or download the file "
            "and give its path."
        ) from error
    repository, revision = found.repository, found.revision

    def load(path: str) -> Path:
        with _without_bars() if quiet else nullcontext():
            return Path(hub.hf_hub_download(repository, path, revision=revision, library_name="collage"))

    try:
        path = found.path
        if not path:
            about = hub.HfApi(library_name="collage").model_info(repository, revision=revision)
            revision = about.sha or revision
            path = _chosen(found, [each.rfilename for each in about.siblings or ()])
        model = load(path)
        for each in _external_files(model):
            load(str(PurePosixPath(path).parent / each))
    except (ModelError, UsageError):
        raise
    except Exception as error:  # the library raises anything, also what its HTTP client raises
        raise ModelError(f"{address} cannot be downloaded: {_reason(error)}") from error
    return model


def _chosen(address: Address, files: Sequence[str]) -> str:
    """The model among the files of the repository. Raises ModelError and UsageError."""
    for name in _PREFERRED:
        if name in files:
            return name
    models = sorted(name for name in files if name.endswith(_SUFFIX))
    if not models:
        raise ModelError(f"{address.repository} has no {_SUFFIX} file. Export the model to ONNX, and give its path.")
    if len(models) > 1:
        example = f"{PREFIX}{address.repository}/{models[0]}"
        raise UsageError(f"{address.repository} has several models: {', '.join(models)}. Name one, such as {example}.")
    return models[0]


def _external_files(path: Path) -> list[str]:
    """The files of the model's external data, beside it; those that lead elsewhere are left to who reads the model."""
    import onnx

    from collage.frontend.read.proto_size import tensors

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # what is wrong with the file is said by who reads the model
        return []
    found = [
        entry.value
        for tensor in tensors(model)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    ]
    inside = [each for each in found if not PurePosixPath(each).is_absolute() and ".." not in PurePosixPath(each).parts]
    return [*dict.fromkeys(inside)]


def _reason(error: Exception) -> str:
    """Why the Hub has no such file, in a line."""
    name = type(error).__name__
    if name in ("RepositoryNotFoundError", "GatedRepoError"):
        return "there is no such repository, or it is not open to you (`hf auth login` tells the Hub who you are)."
    if name in ("RemoteEntryNotFoundError", "EntryNotFoundError"):
        return "the repository has no such file."
    if name == "RevisionNotFoundError":
        return "the repository has no such revision."
    return library_text(error).splitlines()[0]


@contextmanager
def _without_bars() -> Iterator[None]:
    """Show no progress of downloads within the block."""
    from huggingface_hub import utils

    if utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()
