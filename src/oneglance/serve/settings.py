"""What a server is told: the model, the limits, who may ask. A YAML file, options, or both."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from oneglance.core import DEFAULT_BUDGET, DEFAULT_PREFIX_MB, InputError
from oneglance.drafters.settings import BranchK, Budget
from oneglance.files import parse_yaml

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ServeSettings(BaseModel):
    """The settings of a server. Unknown keys are refused.

    Attributes:
        target, head, drafter, tree, budget, branch_k, dtype, device, device_map, attention, threads: as ``load``.
        gate: margin in logits under which a choice is left to a single step; 0 is off.
        host, port: where it listens; loopback by default.
        served_model_name: how clients call the model; default the target's name.
        api_key: what clients must send as bearer token; None asks for none.
        max_queue: requests that may wait; more are turned away (429).
        timeout_s: from a request's arrival to the end of its answer.
        shutdown_s: how long a shutdown waits for what runs.
        max_tokens: cap of an answer whose request names none.
        max_images: in one request.
        max_budget: largest tree that a request may ask for.
        max_body_mb: largest request body, in MiB.
        prefix_cache_mb: memory, in MiB, for the rows of earlier prompts and answers; 0 reuses none.
        fetch_urls: whether images may be named by http(s) URL.
        fetch_private_urls: also from loopback, private and link-local addresses: then whoever may ask can make this
            machine read from its own network.
        cors_origins: web origins that may call from a browser; none by default.
        log_prompts: put request text into the log.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str = "builtin:reader"
    head: str | None = None
    drafter: str = "block"
    tree: str = "best_first"
    budget: Budget | Literal["auto"] = DEFAULT_BUDGET
    branch_k: BranchK | None = None
    dtype: str = "auto"
    device: str | None = None
    device_map: str | None = None
    attention: str = "sdpa"
    runner: str = "auto"
    threads: int | None = Field(None, ge=1)
    gate: float = Field(0.0, ge=0)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    served_model_name: str | None = None
    api_key: str | None = Field(None, min_length=1, repr=False)
    max_queue: int = Field(64, ge=0)
    timeout_s: float = Field(600.0, gt=0)
    shutdown_s: float = Field(60.0, ge=0)
    max_tokens: int = Field(1024, ge=1)
    max_images: int = Field(16, ge=0)
    max_budget: Budget = 255
    max_body_mb: int = Field(64, ge=1)
    prefix_cache_mb: int = Field(DEFAULT_PREFIX_MB, ge=0)
    fetch_urls: bool = True
    fetch_private_urls: bool = False
    cors_origins: tuple[str, ...] = ()
    log_prompts: bool = False

    @field_validator("fetch_private_urls")
    @classmethod
    def _is_looked_at(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("fetch_urls") is False:
            raise ValueError("no URL is fetched at all; drop it, or allow fetch_urls")
        return value

    @property
    def model_name(self) -> str:
        return self.served_model_name or self.target

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK or self.host.startswith("127.")


def read_settings(path: Path | None, options: dict[str, object]) -> ServeSettings:
    """The settings of a file, with ``options`` over them.

    Raises:
        InputError: the file cannot be read, or a setting is unknown or out of range.
    """
    given: dict[str, object] = {}
    if path is not None:
        try:
            loaded = parse_yaml(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the settings in {path}: {' '.join(str(error).split())}") from error
        if not isinstance(loaded, dict | None):
            raise InputError(f"{path} must hold settings, one a line, such as 'port: 8001'")
        given = dict(loaded or {})
    try:
        return ServeSettings.model_validate({**given, **options})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise InputError(f"unknown setting {name!r}; known: {', '.join(ServeSettings.model_fields)}") from error
        raise InputError(f"setting {name}: {first['msg']}, got {first['input']!r}") from error
