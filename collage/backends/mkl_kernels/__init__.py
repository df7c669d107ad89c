"""The `mkl` backend's parts: from a product to calls of MKL's GEMM, one for each thread's share of the work.

``library`` finds MKL, ``task`` reads a chain as a product, ``plan`` divides it into shares, and ``kernel`` binds these
to buffers.
"""
