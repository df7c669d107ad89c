"""OpenVINO GenAI's continuous batching, on the model that optimum-intel exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.lib.serving.contender import (
    BFLOAT16,
    FLOAT32,
    INT8,
    Contender,
    MissingError,
    Note,
    Setup,
    cache_precision,
    convert,
    serve_stepwise,
)
from scripts.lib.serving.trace import Arrival

_BATCHED_TOKENS = 256
_CACHE_GB = 2
_NAMES = {FLOAT32: "f32", BFLOAT16: "bf16"}


class OpenVinoGenAi:
    """A pipeline that is asked for one iteration after another."""

    def __init__(self, setup: Setup) -> None:
        try:
            import openvino_genai as library
        except ImportError as error:
            raise MissingError("openvino-genai is not installed") from error
        self._library = library
        config = library.SchedulerConfig()
        config.max_num_batched_tokens = _BATCHED_TOKENS
        config.max_num_seqs = setup.running
        config.cache_size = _CACHE_GB
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = False
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": setup.threads}
        if not setup.defaults:
            precision = _NAMES[cache_precision(setup.precision)]
            properties |= {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
            if setup.precision != INT8:
                properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
        self._settings = {**properties, "max_num_batched_tokens": _BATCHED_TOKENS}
        self._pipeline = library.ContinuousBatchingPipeline(
            str(_exported(setup.folder, setup.precision)), config, "CPU", properties, {}
        )
        self._handles: dict[int, Any] = {}
        self._next = 0
        self._numbers: dict[int, int] = {}

    def facts(self) -> Mapping[str, Any]:
        """The version and the settings."""
        return {"version": self._library.__version__, **self._settings}

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Serve the requests."""
        serve_stepwise(self, arrivals, note)

    def add(self, number: int, arrival: Arrival) -> None:
        """Take a request in."""
        import numpy as np
        import openvino

        config = self._library.GenerationConfig()
        config.max_new_tokens = arrival.tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = openvino.Tensor(np.array([arrival.prompt], np.int64))
        self._handles[number] = self._pipeline.add_request(self._next, ids, config)
        self._next += 1

    def step(self) -> list[tuple[int, int]]:
        """Run an iteration."""
        self._pipeline.step()
        found = []
        for number, handle in list(self._handles.items()):
            while handle.can_read():
                for output in handle.read().values():
                    found += [(number, int(token)) for token in output.generated_ids]
            if handle.get_status() == self._library.GenerationStatus.FINISHED:
                del self._handles[number]
        return found


def open_contender(name: str, setup: Setup) -> Contender:
    """The pipeline. Raises MissingError."""
    return OpenVinoGenAi(setup)


def _exported(folder: Path, precision: str) -> Path:
    """The model in OpenVINO's form, which is made once: with weights in 8 bits, or in float32."""
    narrow = precision == INT8
    found = folder / ("openvino-int8" if narrow else "openvino")
    if (found / "openvino_model.xml").exists():
        return found
    command = [
        "optimum-cli", "export", "openvino", "--model", str(folder), "--task", "text-generation-with-past",
        "--weight-format", "int8" if narrow else "fp32", str(found),
    ]  # fmt: skip
    convert(command)
    return found
