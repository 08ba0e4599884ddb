"""Why a checkpoint of the hub cannot be had: one wording for targets and heads, at once, with its fix."""

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

import oneglance
from oneglance import hub
from oneglance.core import HeadError, InputError, TargetError
from oneglance.drafters.checkpoint import load_checkpoint
from oneglance.targets.outline import outline_target

NAME = "owner/name"


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """A hub at an address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    return address


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does about a model that is not there, is not open, or has no such file."""

    def do_GET(self) -> None:
        code, reason = {"nobody": (404, "RepoNotFound"), "gated": (403, "GatedRepo")}.get(
            self.path.split("/")[1], (404, "EntryNotFound")
        )
        self.send_response(code)
        self.send_header("X-Error-Code", reason)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield
        server.shutdown()


def said(kind: str, why: str) -> str:
    return f"{kind} {NAME!r} is no folder here and cannot be downloaded: {why}"


def test_a_hub_that_does_not_answer_is_named_for_targets_and_heads(nobody: str) -> None:
    fix = f"{nobody} does not answer; check the network, give a local folder, or set HF_HOME to where a cache has it"
    with pytest.raises(TargetError) as target:
        outline_target(NAME)
    with pytest.raises(HeadError) as head:
        load_checkpoint(NAME)
    assert (str(target.value), str(head.value)) == (said("target", fix), said("head", fix))


def test_the_target_is_named_before_its_head(nobody: str) -> None:
    with pytest.raises(TargetError, match="target 'owner/target' is no folder here"):
        oneglance.load("owner/target", NAME)


def test_offline_by_wish_is_not_the_networks_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for call in (outline_target, load_checkpoint):
        with pytest.raises(InputError, match="HF_HUB_OFFLINE is set, and the cache does not have it; unset that, give"):
            call(NAME)


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize(
    ("owner", "fix"),
    [("nobody", "check the name, or set HF_TOKEN"), ("gated", "accept them on its page"), ("bare", "without a config")],
)
def test_a_hub_that_refuses_is_told_apart(owner: str, fix: str) -> None:
    for kind in ("target", "head", "target or head"):
        with pytest.raises(InputError, match=fix) as error:
            hub.fetch_config(f"{owner}/name", kind)  # type: ignore[arg-type]
        assert str(error.value).startswith(f"{kind} '{owner}/name' is no folder here and cannot be downloaded: ")


@pytest.mark.usefixtures("nobody")
def test_what_the_cache_holds_needs_no_hub(tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "models--owner--name"
    folder = repository / "snapshots" / ("0" * 40)
    for path, text in ((repository / "refs" / "main", "0" * 40), (folder / "config.json", "{}")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert hub.fetch_config(NAME, "head") == folder / "config.json"
    assert hub.fetch_folder(NAME, "head", ["*.json"]) == folder
    assert os.listdir(folder) == ["config.json"]


def test_a_head_of_the_hub_asks_for_its_target() -> None:
    """At once: it could not be one of the built-in target's."""
    with pytest.raises(InputError, match=r"name its own target by target=… \(oneglance heads lists both\)"):
        oneglance.load(head=NAME)


def test_a_target_without_a_head_is_told_where_heads_are() -> None:
    with pytest.raises(InputError, match="give head=…, or drafter='none' for plain decoding; oneglance heads lists"):
        oneglance.load(NAME)


def test_a_folder_without_a_model_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="there is no model in the folder"):
        oneglance.load(str(tmp_path))
