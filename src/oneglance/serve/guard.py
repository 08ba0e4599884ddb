"""Who may ask: the API key, looked at before a request's body is read."""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Receive, Scope, Send

from oneglance.serve.errors import error_object, json_response


class Guard:
    """Middleware: without the key, nothing below ``/v1/`` is reached.

    Args:
        app: what it wraps.
        key: what clients must send as bearer token.
    """

    def __init__(self, app: ASGIApp, *, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/") or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        value = error_object("send the API key as 'Authorization: Bearer …'", "invalid_request_error")
        await json_response(value, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        return secrets.compare_digest(token.strip(), self._key) and scheme.lower() == b"bearer"
