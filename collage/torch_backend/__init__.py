"""Collage as a backend of ``torch.compile``: ``torch.compile(model, backend="collage")``."""
