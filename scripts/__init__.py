"""The repository's own tools. They are run from a checkout and are not installed."""
