"""Every failure as OpenAI's error object, with a message that names the fix and a status that a client understands."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from oneglance.core import InputError, OneglanceError
from oneglance.serve.worker import NotReady, QueueFull

log = logging.getLogger("oneglance.serve")
RETRY_S = "1"


class TooLate(OneglanceError):
    """An answer took longer than a request may."""


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in plain ASCII, which no text can break."""
    return Response(json.dumps(value), status, dict(headers or {}), media_type="application/json")


def body(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, error object and headers of a failure."""
    if isinstance(error, InputError):
        return 400, error_object(str(error), "invalid_request_error"), {}
    if isinstance(error, QueueFull):
        return 429, error_object(str(error), "rate_limit_error", code="queue_full"), {"Retry-After": RETRY_S}
    if isinstance(error, NotReady):
        return 503, error_object(str(error), "service_unavailable", code="not_ready"), {"Retry-After": RETRY_S}
    if isinstance(error, TooLate):
        return 504, error_object(str(error), "timeout_error", code="timeout"), {}
    return 500, error_object("decoding failed; the server's log says why", "server_error"), {}


def response(error: Exception) -> Response:
    """The answer to a request that failed."""
    status, value, headers = body(error)
    return json_response(value, status, headers)


def install(app: FastAPI) -> None:
    """Make every failure of an app answer in this shape."""

    async def ours(request: Request, error: Exception) -> Response:
        return response(error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        message, parameter = _what_is_invalid(error)
        return json_response(error_object(message, "invalid_request_error", param=parameter), 400)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        value = error_object(str(error.detail), "invalid_request_error")
        return json_response(value, error.status_code, error.headers)

    app.add_exception_handler(OneglanceError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, ours)


def error_object(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's shape of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _what_is_invalid(error: RequestValidationError) -> tuple[str, str | None]:
    """One sentence about the worst of a body's faults, and the parameter that it names."""
    faults = sorted(error.errors(), key=lambda fault: (fault["type"] != "extra_forbidden", -len(fault["loc"])))
    fault = faults[0]
    place = [str(part) for part in fault["loc"] if part != "body"]
    name = ".".join(place) or None
    if fault["type"] == "extra_forbidden":
        return f"unsupported parameter {name!r}; leave it out", name
    if fault["type"] in ("json_invalid", "model_attributes_type") or name is None:
        return "the request body must be a JSON object, sent as application/json", None
    return f"{name}: {fault['msg']}", name
