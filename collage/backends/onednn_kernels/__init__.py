"""The `onednn` backend's parts: from a chain to oneDNN primitives, one for each thread's share of the work.

``library`` and ``handles`` speak the C API. The operators' files plan which primitive each thread runs on which part
of the buffers, ``artifact`` stores a plan with its packed weights, and ``kernel`` loads it.
"""
