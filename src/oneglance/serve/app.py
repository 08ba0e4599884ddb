"""The application: routes, and how a request becomes a job and its events an answer."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anyio import to_thread
from fastapi import FastAPI, HTTPException, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse

from oneglance import __version__
from oneglance.core import Generation
from oneglance.serve import document, errors, schema
from oneglance.serve.answers import Answer, ChatAnswer, CompletionAnswer
from oneglance.serve.errors import TooLate, json_response
from oneglance.serve.guard import Guard
from oneglance.serve.logs import RequestScope
from oneglance.serve.metrics import Metrics
from oneglance.serve.reading import Question, read_chat, read_completion
from oneglance.serve.settings import ServeSettings
from oneglance.serve.worker import Job, QueueFull, Worker

if TYPE_CHECKING:
    from oneglance.decoder import Decoder

log = logging.getLogger("oneglance.serve")
PAGE = Path(__file__).parent / "page"
ASSETS = Path(__file__).parent.parent / "assets"
EXAMPLES = ("demo_page.png", "demo_chart.png")
OWN_NAMES = ("127.0.0.1", "localhost", "::1", "[::1]", "[")  # the last as older Starlettes cut an IPv6 address
POLL_S = 0.25  # between looks at whether the client is still there
POLICY = "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
PAGE_HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}


class ClientGone(Exception):
    """Nobody reads the answer any more."""


class Service:
    """What the routes share: settings, worker, metrics.

    Args:
        settings: of the server.
        load: makes the decoder, in the worker's thread.
    """

    def __init__(self, settings: ServeSettings, load: Callable[[], Decoder]) -> None:
        self.settings = settings
        self.metrics = Metrics(settings.model_name)
        self.worker = Worker(load, self.metrics, max_queue=settings.max_queue, prefix_cache_mb=settings.prefix_cache_mb)
        self.started = int(time.time())

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served."""
        if name not in (None, self.settings.model_name):
            raise HTTPException(404, f"there is no model {name!r} here; use {self.settings.model_name!r}")

    async def answer(
        self,
        request: Request,
        body: schema.Sampling,
        read: Callable[[], Question],
        shape: Callable[[Decoder, Question], Answer],
    ) -> Response:
        """Queue a request, and answer it whole or as a stream."""
        self.check_model(body.model)
        deadline = asyncio.get_running_loop().time() + self.settings.timeout_s
        try:
            job = self.worker.admit(request.client.host if request.client else "?")
        except QueueFull:
            self.metrics.turned_away()
            raise
        is_streaming = False
        try:
            question = await self._read(read, deadline)
            assert self.worker.decoder is not None
            answer = shape(self.worker.decoder, question)
            self.worker.submit(job, question)
            num_prompt = await self._next(job, deadline, request)
            if body.stream:
                is_streaming = True
                events = self._stream(job, answer, num_prompt, deadline)
                return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
            steps = []
            while not isinstance(event := await self._next(job, deadline, request), Generation):
                steps.append(event)
            self._log(job, event)
            return json_response(answer.whole(steps, event, num_prompt))
        except ClientGone:
            return Response(status_code=499)
        finally:
            if not is_streaming:
                self.worker.leave(job)

    async def _stream(self, job: Job, answer: Answer, num_prompt: int, deadline: float) -> AsyncIterator[bytes]:
        try:
            for chunk in answer.opening():
                yield _event(chunk)
            while not isinstance(event := await self._next(job, deadline), Generation):
                for chunk in answer.step(event):
                    yield _event(chunk)
            self._log(job, event)
            for chunk in answer.closing(event, num_prompt):
                yield _event(chunk)
        except Exception as error:
            yield _event(errors.body(error)[1])
        finally:
            self.worker.leave(job)
        yield b"data: [DONE]\n\n"

    async def _read(self, read: Callable[[], Question], deadline: float) -> Question:
        """A request's question, whose images may come from slow places."""
        try:
            async with asyncio.timeout_at(deadline):
                return await to_thread.run_sync(read, abandon_on_cancel=True)
        except TimeoutError:
            raise self._too_late() from None

    def _too_late(self) -> TooLate:
        return TooLate(f"the answer took longer than {self.settings.timeout_s:g} s; ask for fewer tokens")

    async def _next(self, job: Job, deadline: float, request: Request | None = None) -> Any:
        """The job's next event.

        Raises:
            TooLate, ClientGone: and the job is ended.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + POLL_S)):
                    event = await job.events.get()
            except TimeoutError:
                if loop.time() >= deadline:
                    job.end("timeout")
                    raise self._too_late() from None
                if request is not None and await request.is_disconnected():
                    job.end("abort")
                    raise ClientGone from None
                continue
            if isinstance(event, Exception):
                raise event
            return event

    def _log(self, job: Job, generation: Generation) -> None:
        fields: dict[str, Any] = {
            "tokens": generation.num_tokens,
            "rounds": len(generation.rounds),
            "finish_reason": generation.finish_reason,
            "fell_back": generation.fell_back,
            "ms": round((time.perf_counter() - job.arrived) * 1e3, 1),
        }
        if self.settings.log_prompts:
            fields["text"] = generation.text
        log.info("answer", extra={"fields": fields})


def create_app(settings: ServeSettings, load: Callable[[], Decoder]) -> FastAPI:
    """The ASGI application.

    Args:
        settings: of the server.
        load: makes the decoder; called once, in the decoding thread, when the application starts.
    """
    service = Service(settings, load)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await run_in_threadpool(service.worker.stop)

    app = FastAPI(title="oneglance", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    errors.install(app)
    _add_model_routes(app, service)
    _add_operation_routes(app, service)
    _add_page(app)
    document.describe(app, settings)
    if settings.api_key is not None:
        app.add_middleware(Guard, key=settings.api_key)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    if settings.is_loopback:  # a web page that rebinds its name to this machine is no client
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*OWN_NAMES, settings.host])
    app.add_middleware(RequestScope, max_body=settings.max_body_mb * 2**20)
    return app


def _add_model_routes(app: FastAPI, service: Service) -> None:
    settings = service.settings

    @app.post("/v1/chat/completions", responses=document.ANSWER)
    async def chat_completions(body: schema.ChatRequest, request: Request) -> Response:
        def shape(decoder: Decoder, question: Question) -> Answer:
            return ChatAnswer(
                settings.model_name,
                decoder.target.tokenizer,
                question.parser(),
                logprobs=bool(body.logprobs),
                rounds=bool(body.rounds),
                include_usage=bool(body.stream_options and body.stream_options.include_usage),
            )

        return await service.answer(request, body, lambda: read_chat(body, settings), shape)

    @app.post("/v1/completions", responses=document.ANSWER)
    async def completions(body: schema.CompletionRequest, request: Request) -> Response:
        def shape(decoder: Decoder, question: Question) -> Answer:
            return CompletionAnswer(
                settings.model_name,
                decoder.target.tokenizer,
                question.parser(),
                logprobs=body.logprobs is not None,
                rounds=bool(body.rounds),
                include_usage=bool(body.stream_options and body.stream_options.include_usage),
            )

        return await service.answer(request, body, lambda: read_completion(body, settings), shape)

    @app.get("/v1/models", responses=document.failures(401))
    async def models() -> Response:
        return json_response({"object": "list", "data": [_model(service)]})

    @app.get("/v1/models/{name:path}", responses=document.failures(401, 404))
    async def model(name: Annotated[str, "served name"]) -> Response:
        service.check_model(name)
        return json_response(_model(service))


def _model(service: Service) -> dict[str, Any]:
    decoder = service.worker.decoder
    return {
        "id": service.settings.model_name,
        "object": "model",
        "created": service.started,
        "owned_by": "oneglance",
        "max_model_len": decoder.target.context_length if decoder else None,
        "takes_images": decoder.target.takes_images if decoder else None,
        "drafter": service.settings.drafter,
        "budget": service.settings.budget,
        "max_budget": service.settings.max_budget,
    }


def _add_operation_routes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether the process answers."""
        return json_response({"status": "ok"})

    @app.get("/ready", responses={503: {"description": "Not now.", "content": {"application/json": {}}}})
    async def ready() -> Response:
        """Whether it would answer a request now."""
        is_ready = service.worker.is_ready
        return json_response({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    names = {file.name for file in PAGE.iterdir()}
    both: dict[str, Any] = {"methods": ["GET", "HEAD"], "include_in_schema": False}

    @app.api_route("/", **both)
    @app.api_route("/{name}", **both)
    async def page(name: str = "index.html") -> Response:
        if name not in names:
            raise HTTPException(404, "Not Found")
        return FileResponse(PAGE / name, headers=PAGE_HEADERS)

    @app.get("/examples/{name}", include_in_schema=False)
    async def example(name: str) -> Response:
        if name not in EXAMPLES:
            raise HTTPException(404, f"there is no example {name!r}")
        return FileResponse(ASSETS / name)


def _event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
