"""Reading subgraphs for libraries of operators: one operator and its epilogue.

``chain`` reads a subgraph, ``conv`` and ``product`` what its operator computes, ``fold`` and ``epilogue`` what follows.
"""
