"""Errors of the sweep that are told to the user in one line."""

from __future__ import annotations


class UnknownFamilyError(Exception):
    """A name is that of no family. The message lists all unknown names, and the valid ones."""


class PackagesMissingError(Exception):
    """The interpreter of the exporters lacks packages, or cannot be run. The message says how to get them."""
