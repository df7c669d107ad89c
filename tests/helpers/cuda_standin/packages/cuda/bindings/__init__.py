"""Stands in for CUDA's bindings in processes that run on the stand-in for the driver."""
