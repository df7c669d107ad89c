"""The `cudnn` backend's parts: from a match to the description of a convolution, its algorithm, and its launch.

``task`` reads a match, ``description`` says what cuDNN is to compute, ``library`` calls it by ctypes, ``artifact`` is
what is kept, and ``kernel`` runs it. Nothing but ``library`` and ``kernel`` needs a GPU.
"""
