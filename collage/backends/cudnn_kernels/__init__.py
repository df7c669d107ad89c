"""The `cudnn` backend's parts: from a match to a graph, its execution plan, and its launch.

``task`` reads a match, and ``convolution`` and the like make graphs of it (``graph``, ``lowered``). ``library`` calls
cuDNN's graph interface by ctypes with the numbers of ``enums``, ``build`` makes descriptors of a graph, ``plans`` asks
the heuristic, ``artifact`` is what is kept, and ``kernel`` runs it. Only ``plans`` and ``kernel`` need a GPU.
"""
