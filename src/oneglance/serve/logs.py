"""Structured logs: a JSON object a line, each with the id of its request; no request text unless it is asked for."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from contextvars import ContextVar
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oneglance.serve.errors import error_object, json_response

log = logging.getLogger("oneglance.serve")
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
ALLOWED_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
QUIET = frozenset({"/health", "/ready", "/metrics"})


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "request_id": request_id.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class RequestScope:
    """Middleware: an id for each request, a line when it is done, and a limit on its body.

    Args:
        app: what it wraps.
        max_body: bytes.
    """

    def __init__(self, app: ASGIApp, *, max_body: int) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        own = given if ALLOWED_ID.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(own)
        started = time.perf_counter()
        status, size = 0, 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body:
                raise BodyTooLarge(self._max_body)  # the application answers
            return message

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = own
            await send(message)

        try:
            length = headers.get("content-length", "0")
            if length.isdecimal() and int(length[:20]) > self._max_body:
                text = BodyTooLarge(self._max_body).detail
                await json_response(error_object(text, "invalid_request_error"), 413)(scope, receive, marked)
            else:
                await self._app(scope, counted, marked)
        finally:
            if scope["path"] not in QUIET:
                fields = {
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "client": (scope.get("client") or ("?",))[0],
                    "ms": round((time.perf_counter() - started) * 1e3, 1),
                }
                log.info("request", extra={"fields": fields})
            request_id.reset(token)


class BodyTooLarge(HTTPException):
    """A request body is over the limit.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the request body is larger than {limit} bytes; send smaller images")
