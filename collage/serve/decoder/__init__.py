"""The model side of serving: a decoder is recognised, cut at its attention, compiled, and run over packed tokens."""
