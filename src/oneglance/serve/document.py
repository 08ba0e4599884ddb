"""The OpenAPI document: what the routes answer, failures included, and no more than they do."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from oneglance.serve import schema
from oneglance.serve.settings import ServeSettings


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses of a route that may fail in these ways."""
    return {status: {"description": FAILURES[status], "model": schema.Failure} for status in statuses}


FAILURES = {
    400: "Bad input; the message names the fix.",
    401: "No or a wrong API key.",
    404: "No such model.",
    413: "The body is too large.",
    429: "The queue is full; see Retry-After.",
    500: "A fault of the server; its log says more.",
    503: "Loading, or shutting down; see Retry-After.",
    504: "The answer took too long.",
}
ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer: whole, or with `stream` as events that end with `[DONE]`.",
        "content": {"text/event-stream": {}},
    },
    **failures(400, 401, 404, 413, 429, 500, 503, 504),
}


def describe(app: FastAPI, settings: ServeSettings) -> None:
    """Give an application its document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for path, operations in made["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)  # FastAPI's own: what is invalid gets a 400 here
                    if settings.api_key is not None and path.startswith("/v1/"):
                        operation["security"] = [{"key": []}]
            if settings.api_key is not None:
                made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
