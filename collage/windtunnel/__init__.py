"""WindTunnel: fitted pipelines as networks, fine-tuned end to end (chapter 5)."""

from collage.windtunnel.registry import register_converter
from collage.windtunnel.tunnel import Tunnel, load, translate

__all__ = ["Tunnel", "load", "register_converter", "translate"]
