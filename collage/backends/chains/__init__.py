"""Reading subgraphs for libraries of operators: one operator, and the functions that its result goes through.

``chain`` reads a subgraph, ``conv`` and ``product`` what its operator computes, ``fold`` and ``epilogue`` what follows.
"""
