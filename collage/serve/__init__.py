"""Serving generative models: iteration-level scheduling on compiled decoders, and an OpenAI-compatible server.

``Engine`` is the interface without HTTP. ``collage serve`` puts a server in front of it, in a process of its own.
"""

from __future__ import annotations

from collage.serve.engine import Completion, Engine, Stream
from collage.serve.options import EngineOptions
from collage.serve.runner import Runner, Slice
from collage.serve.sampling import Sampling
from collage.serve.text import Output

__all__ = ["Completion", "Engine", "EngineOptions", "Output", "Runner", "Sampling", "Slice", "Stream"]
