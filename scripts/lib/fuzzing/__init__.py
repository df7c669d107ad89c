"""Fuzzing: changed module files and ONNX files are loaded or compiled, and run, each in a process that may die."""
