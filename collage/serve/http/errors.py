"""Errors in OpenAI's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collage.serve.request import Finish

_TYPES = {400: "invalid_request_error", 404: "not_found_error", 408: "timeout_error", 429: "rate_limit_error"}


@dataclass
class ApiError(Exception):
    """An answer other than 200. ``param`` is the field of the request that is wrong."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None

    def body(self) -> dict[str, Any]:
        """The object that the client gets."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """The headers besides the usual ones."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """An error for a request that is wrong."""
    return ApiError(400, message, code, param)


def unavailable(message: str, retry_after_s: int = 1) -> ApiError:
    """An error for a server that cannot serve at the moment."""
    return ApiError(503, message, "unavailable", None, retry_after_s)


def ended(finish: Finish, message: str) -> ApiError | None:
    """The error for an answer that has ended otherwise than an answer should."""
    if finish is Finish.EXPIRED:
        return ApiError(408, "the answer was not complete within timeout_s.", "timeout")
    if finish is Finish.FAILED:
        return ApiError(500, message, "engine_error")
    if finish is Finish.CANCELLED:
        return unavailable(message or "the server is shutting down.")
    return None
