"""Decoders with random weights, made with onnx alone, in the forms in which exporters write them."""
