"""Changed module files and changed ONNX files, each loaded or compiled, and run, in a process that may die."""
