"""The `onednn` backend's parts: from a subgraph to oneDNN primitives, one for each thread's share of the work.

``library`` and ``handles`` speak the C API. ``chain`` reads a subgraph as one operator and what follows it, the
operators' files plan which primitive each thread runs on which part of the buffers, ``artifact`` stores a plan
with its packed weights, and ``kernel`` loads it.
"""
