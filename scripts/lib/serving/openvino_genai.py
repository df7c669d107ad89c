"""OpenVINO GenAI's continuous batching, on the model that optimum-intel exports."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.lib.serving.process import BFLOAT16, FLOAT32, INT8, ContenderError, Setup
from scripts.lib.serving.trace import Arrival

_BATCHED_TOKENS = 256
_CACHE_GB = 2
_NAMES = {FLOAT32: "f32", BFLOAT16: "bf16"}


class OpenVinoGenAi:
    """A pipeline that is asked for one iteration after another. At its ``defaults`` it chooses its own precision."""

    defaults = False

    def __init__(self, setup: Setup) -> None:
        try:
            import openvino_genai as library
        except ImportError as error:
            raise ContenderError("openvino-genai is not installed") from error
        self._library = library
        config = library.SchedulerConfig()
        config.max_num_batched_tokens = _BATCHED_TOKENS
        config.max_num_seqs = setup.running
        config.cache_size = _CACHE_GB
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = False
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": setup.threads}
        if not self.defaults:
            precision = _NAMES[setup.cache]
            properties |= {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
            if setup.precision != INT8:
                properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
        self.facts = {"version": library.__version__, **properties, "max_num_batched_tokens": _BATCHED_TOKENS}
        self._pipeline = library.ContinuousBatchingPipeline(
            str(_exported(setup.folder, setup.precision)), config, "CPU", properties, {}
        )
        self._requests = 0

    def serve(self, arrivals: Sequence[Arrival], note: Callable[[int, int], None]) -> None:
        """Serve the requests with iterations in this thread; requests are taken in between."""
        start = time.monotonic()
        waiting = list(enumerate(arrivals))
        running: dict[int, Any] = {}
        while waiting or running:
            now = time.monotonic() - start
            while waiting and waiting[0][1].at_s <= now:
                number, arrival = waiting.pop(0)
                running[number] = self._add(arrival)
            if not running:
                time.sleep(max(0.0, waiting[0][1].at_s - now))
                continue
            self._pipeline.step()
            for number, handle in list(running.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        for token in output.generated_ids:
                            note(number, int(token))
                if handle.get_status() == self._library.GenerationStatus.FINISHED:
                    del running[number]

    def _add(self, arrival: Arrival) -> Any:
        import numpy as np
        import openvino

        config = self._library.GenerationConfig()
        config.max_new_tokens = arrival.tokens
        config.ignore_eos = True
        config.do_sample = False
        self._requests += 1
        ids = openvino.Tensor(np.array([arrival.prompt], np.int64))
        return self._pipeline.add_request(self._requests, ids, config)


class AtItsDefaults(OpenVinoGenAi):
    """The same with the precision that it chooses."""

    defaults = True


def _exported(folder: Path, precision: str) -> Path:
    """The model in OpenVINO's form, made once, with weights in 8 bits or in float32. Raises ContenderError."""
    narrow = precision == INT8
    found = folder / ("openvino-int8" if narrow else "openvino")
    if (found / "openvino_model.xml").exists():
        return found
    if not (folder / "config.json").exists():
        raise ContenderError("this model is not written in its format")
    command = [
        "optimum-cli", "export", "openvino", "--model", str(folder), "--task", "text-generation-with-past",
        "--weight-format", "int8" if narrow else "fp32", str(found),
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ContenderError("optimum-cli, which converts the model, is not installed") from error
    except subprocess.CalledProcessError as error:
        raise ContenderError(f"optimum-cli cannot convert the model: {error.stderr.strip()[-300:]}") from error
    return found
