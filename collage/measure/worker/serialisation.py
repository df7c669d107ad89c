"""Serialisation of what is sent to workers, also of classes that a script or notebook defines.

Classes of modules are imported by the worker, which has our ``sys.path``; those of ``__main__`` are sent with their
code.
"""

from __future__ import annotations

import cloudpickle

from collage.backends.base import Backend
from collage.errors import MeasurementError


def pickle_backend(name: str, backend: Backend) -> bytes:
    """Pickle a backend. Raises MeasurementError, which names the backend and the way out."""
    try:
        return pickle_message(backend)
    except Exception as error:  # pickling runs the backend's own code, which may raise anything
        raise MeasurementError(
            f"backend {name} cannot be sent to the measuring worker: {type(error).__name__}: {error}. "
            "Keep files, sessions and locks out of its instances; open them in load()."
        ) from error


def pickle_message(message: object) -> bytes:
    """Pickle a message to the worker."""
    data: bytes = cloudpickle.dumps(message)
    return data
