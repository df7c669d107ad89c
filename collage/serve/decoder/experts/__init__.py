"""Mixtures of experts: exporters' loops over experts are read, and rewritten as products that choose their matrix."""
