"""Interfaces of other libraries, for programs that are written for them."""
