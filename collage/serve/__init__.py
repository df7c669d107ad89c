"""Serving decoders: requests of different lengths share iterations of a compiled decoder."""
