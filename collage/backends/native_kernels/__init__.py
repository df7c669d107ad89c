"""The `native` backend's parts: from a subgraph to Collage's own kernels in C++ (`collage/native/kernels`).

An algorithm is a file here and a source there: ``algorithm`` says what it has to offer, ``algorithms`` lists them,
``convolution`` reads a subgraph for those that convolve, and ``artifact`` stores what they pack.
"""
