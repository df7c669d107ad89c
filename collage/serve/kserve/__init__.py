"""Serving a module by KServe's protocol V2 (the Open Inference Protocol) over HTTP, as Triton speaks it."""
