"""Files of the Hugging Face hub, from its cache where they are there; or one wording of why they cannot be had."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from oneglance.errors import HeadError, InputError, TargetError, first_line

Kind = Literal["target", "head", "target or head"]
ERRORS: dict[Kind, type[InputError]] = {"target": TargetError, "head": HeadError, "target or head": InputError}
ELSEWHERE = "give a local folder, or set HF_HOME to where a cache has it"


def has_owner(name: str) -> bool:
    """Whether a name reads as ``owner/name``, and as no path from here, from home or from the root."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def fetch_config(name: str, kind: Kind) -> Path:
    """``config.json`` of a hub id.

    Raises:
        InputError: it cannot be had; a ``TargetError`` or ``HeadError`` by its kind.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with _explained(name, kind):
        with contextlib.suppress(LocalEntryNotFoundError):
            return Path(hf_hub_download(name, "config.json", local_files_only=True))
        if not answers():
            raise LocalEntryNotFoundError(name)
        return Path(hf_hub_download(name, "config.json"))


def fetch_folder(name: str, kind: Kind, patterns: Sequence[str]) -> Path:
    """The folder of a hub id, with the files that fit the patterns.

    Raises:
        InputError: as ``fetch_config``.
    """
    from huggingface_hub import snapshot_download

    with _explained(name, kind):
        return Path(snapshot_download(name, allow_patterns=list(patterns), local_files_only=not answers()))


@contextlib.contextmanager
def _explained(name: str, kind: Kind) -> Iterator[None]:
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except (OSError, HFValidationError, no_answer()) as error:
        why, fix = _reason(error)
        raise ERRORS[kind](f"{kind} {name!r} is no folder here and cannot be downloaded: {why}; {fix}") from error


def _reason(error: Exception) -> tuple[str, str]:
    """Why a file could not be had, and what to do."""
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        return f"{host} gives it to those only who accept its terms", "accept them on its page, and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{host} has none of that name, or hides it", "check the name, or set HF_TOKEN if it is private"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"{host} has it without a config.json", "name one that transformers can load"
    if isinstance(error, errors.LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and the cache does not have it", f"unset that, {ELSEWHERE}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return f"{host} does not answer", f"check the network, {ELSEWHERE}"
    if isinstance(error, no_answer()) and not isinstance(error, errors.HfHubHTTPError):
        return f"{host} does not answer", f"check the network, {ELSEWHERE}"
    return first_line(error), "check the name and the network"


def answers(*, within_s: float = 2.0) -> bool:
    """Whether the hub may be asked and takes connections; the latter is taken for granted behind a proxy. Else a
    download would retry for long."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    parts, answered = urllib.parse.urlsplit(constants.ENDPOINT), threading.Event()
    port = parts.port or (443 if parts.scheme == "https" else 80)

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection((parts.hostname or "", port), timeout=within_s):
            answered.set()

    trial = threading.Thread(target=connect, daemon=True)  # looking a name up knows no timeout
    trial.start()
    trial.join(within_s)
    return answered.is_set()


def no_answer() -> type[Exception]:
    """What the hub's client raises where a request gets no answer, among others: httpx's base error, or httpx2's from
    huggingface_hub 2 on."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
