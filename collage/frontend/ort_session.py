"""What sessions of ONNX Runtime have in common: their options, and runs with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import onnxruntime as ort


def session_options() -> ort.SessionOptions:
    """Options of a session that prints nothing."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def use_mapped_weights(options: ort.SessionOptions) -> None:
    """Let a session that runs a few times use weights where the system has mapped their file.

    Otherwise it rearranges weights of products, and so copies them. The last bits of results differ between the two.
    """
    options.add_session_config_entry("session.disable_prepacking", "1")


def run_within(
    session: ort.InferenceSession, names: Sequence[str] | None, feeds: Mapping[str, Any], limit_s: float
) -> list[Any]:
    """The session's outputs, for inputs by name. ``names`` are the outputs that are wanted; None stands for all.

    Raises TimeoutError after ``limit_s`` seconds, and whatever ONNX Runtime raises. ONNX Runtime looks before each
    operator whether the time is over, also in the bodies of loops.
    """
    options = ort.RunOptions()
    timer = threading.Timer(limit_s, partial(setattr, options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        return list(session.run(names, dict(feeds), options))
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        if options.terminate:
            raise TimeoutError(f"took more than {limit_s:g} s") from error
        raise
    finally:
        timer.cancel()
