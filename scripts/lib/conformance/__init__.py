"""Running ONNX's own backend tests against Collage and engines; see ``scripts/onnx_suite``."""
