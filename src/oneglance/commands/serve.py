"""``oneglance serve``: an OpenAI-compatible server with a page."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oneglance.commands import opening, options, terminal
from oneglance.core import DEFAULT_PREFIX_MB, InputError

if TYPE_CHECKING:
    from oneglance.decoder import Decoder

SERVER, LIMITS = "Server", "Limits"
KEY = "ONEGLANCE_API_KEY"

Config = Annotated[
    Path | None, typer.Option(metavar="FILE", rich_help_panel=SERVER, help="Settings as YAML; options go first.")
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", rich_help_panel=SERVER, help="0.0.0.0 lets other machines in.")]
Port = Annotated[int, typer.Option(metavar="N", rich_help_panel=SERVER, help="0 takes a free one.")]
Name = Annotated[str | None, typer.Option(metavar="NAME", rich_help_panel=SERVER, help="How clients call the model.")]
ApiKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", rich_help_panel=SERVER, help=f"What clients must send; better given in ${KEY}."),
]
Cors = Annotated[
    list[str] | None,
    typer.Option("--cors-origin", metavar="ORIGIN", rich_help_panel=SERVER, help="Web pages that may call; none."),
]
LogPrompts = Annotated[bool, typer.Option("--log-prompts", rich_help_panel=SERVER, help="Put answers into the log.")]
MaxQueue = Annotated[int, typer.Option(metavar="N", rich_help_panel=LIMITS, help="Requests that may wait.")]
Timeout = Annotated[float, typer.Option("--timeout-s", metavar="S", rich_help_panel=LIMITS, help="Of one request.")]
MaxTokens = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=LIMITS, help="Cap of an answer whose request names none.")
]
FetchUrls = Annotated[
    bool, typer.Option("--fetch-urls/--no-fetch-urls", rich_help_panel=LIMITS, help="Read images by http(s) URL.")
]

FetchPrivateUrls = Annotated[
    bool,
    typer.Option(
        "--fetch-private-urls",
        rich_help_panel=LIMITS,
        help="And from this machine's own network, which any client may then reach through it.",
    ),
]


def serve(
    context: typer.Context,
    config: Config = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    served_model_name: Name = None,
    api_key: ApiKey = None,
    cors_origin: Cors = None,
    log_prompts: LogPrompts = False,
    max_queue: MaxQueue = 64,
    timeout_s: Timeout = 600.0,
    max_tokens: MaxTokens = 1024,
    fetch_urls: FetchUrls = True,
    fetch_private_urls: FetchPrivateUrls = False,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    tree: options.Tree = "best_first",
    budget: options.AutoBudget = options.AUTO_BUDGET,
    branch_k: options.BranchK = None,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    prefix_cache_mb: options.PrefixCache = DEFAULT_PREFIX_MB,
    json: options.Json = False,
) -> None:
    """Answer OpenAI clients, and show a page to try it on.

    Point any OpenAI client at the address that is shown, with /v1 after it; open the address itself for the page. One
    request decodes at a time, others wait in turn. Logs go to stderr, a JSON object a line. Ctrl-C or SIGTERM lets
    what runs finish.
    """
    if any(find_spec(name) is None for name in ("fastapi", "prometheus_client", "uvicorn")):
        raise InputError("the server needs more packages; pip install 'oneglance[serve]'")
    from oneglance.serve.server import serve as run
    from oneglance.serve.settings import ServeSettings, read_settings

    named = {
        name: value
        for name, value in context.params.items()
        if name in ServeSettings.model_fields and str(context.get_parameter_source(name)) != "ParameterSource.DEFAULT"
    }
    if cors_origin:
        named["cors_origins"] = tuple(cors_origin)
    if KEY in os.environ:
        named.setdefault("api_key", os.environ[KEY])
    if "budget" in named:
        named["budget"] = opening.budget_of(budget)
    settings = read_settings(config, named)
    opening.head_name(settings.target, settings.head, settings.drafter)

    def load() -> Decoder:
        drafting = ("drafter", "tree", "budget", "branch_k")
        machine = ("dtype", "device", "device_map", "attention", "threads", "runner")
        values = {name: getattr(settings, name) for name in (*drafting, *machine)}
        return opening.open_decoder(settings.target, settings.head, **values)

    def say(address: str) -> None:
        if json:
            terminal.write_json({"address": address, "model": settings.model_name, "pid": os.getpid()})
            sys.stdout.flush()
        else:
            print(f"{settings.model_name} at {address}/v1 · page at {address}/", flush=True)
            if not settings.is_loopback and settings.api_key is None:
                print(f"note: anyone who reaches {settings.host} may ask; set ${KEY}", file=sys.stderr)

    run(settings, load, say)
