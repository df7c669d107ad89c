"""What every backend makes of special values, beside ONNX Runtime: see `scripts/semantics`."""
