"""The sweep of `scripts/semantics`: every backend on special values, compared with ONNX Runtime."""
