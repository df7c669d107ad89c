"""The `native` backend's parts: from a subgraph to Collage's own kernels in C++ (`collage/native/kernels`).

An algorithm is a file here and a C++ source there. ``algorithm`` is what each of them implements, and ``algorithms``
lists them. ``task`` reads a match as a convolution or as a product. ``kernel`` binds what ``pack`` made, after
``limits`` has checked it.
"""
