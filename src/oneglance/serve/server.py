"""The process: uvicorn around the application, logs, signals."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from oneglance.core import InputError
from oneglance.serve.app import Service, create_app
from oneglance.serve.logs import JsonFormatter
from oneglance.serve.settings import ServeSettings

if TYPE_CHECKING:
    from oneglance.decoder import Decoder

log = logging.getLogger("oneglance.serve")


class Server(uvicorn.Server):
    """uvicorn, which at a signal first turns away what waits and then lets finish what runs."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn once a signal came."""
        self._service.worker.drain()
        await super().shutdown(sockets)


def serve(settings: ServeSettings, load: Callable[[], Decoder], on_listening: Callable[[str], None]) -> None:
    """Serve until a signal.

    Args:
        settings: of the server.
        load: makes the decoder.
        on_listening: is told the address, once.

    Raises:
        InputError: the address cannot be had, or the model cannot be loaded.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("httpx", "httpcore", "PIL"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    listener = _listen(settings)
    app = create_app(settings, load)
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_s)),
        log_level="warning",
    )
    server = Server(config, service)

    def give_up() -> None:
        server.should_exit = True

    service.worker.on_failure = give_up
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    with _signals_end_here(), listener:
        on_listening(f"http://{host}:{listener.getsockname()[1]}")
        asyncio.run(server.serve(sockets=[listener]))
    if service.worker.failure is not None:
        raise service.worker.failure


@contextmanager
def _signals_end_here() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more when it is done; here it has done its work by then."""
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda *_: None) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


def _listen(settings: ServeSettings) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # whoever reads the address may connect from then on
    except OSError as error:
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port"
        ) from error
    listener.set_inheritable(True)
    return listener
