"""Operators that map rows to rows, as programs of Collage's own kernels."""
