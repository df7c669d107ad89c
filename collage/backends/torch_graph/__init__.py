"""ONNX models as graphs of PyTorch, for its kernels and for its compiler.

A graph is made of the simplified model, whose shapes are known and whose constants are folded, so that each operator is
a few calls of PyTorch with fixed arguments.
"""
