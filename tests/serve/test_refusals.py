"""What is not supported, not allowed or not sound is refused by name, and never a server error."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image

from oneglance.commands.serve import serve
from oneglance.core import MAX_BUDGET, FetchError, ImageError, InputError, LargeImageError, PrivateUrlError
from oneglance.decoder import Decoder
from oneglance.serve.settings import read_settings

from .conftest import Running, data_uri, png, running, with_image

BOMB = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (60000).to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00" + b"\x00" * 8


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"foo": 1}, "unsupported parameter 'foo'"),
        ({"n": 2}, "n: "),
        ({"audio": {}}, "unsupported parameter 'audio'"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream"),
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": "hot"}, "temperature: "),
        ({"top_p": 0}, "top_p must be"),
        ({"seed": -1}, "seed must be"),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"max_tokens": 4, "max_completion_tokens": 4}, "not both"),
        ({"frequency_penalty": 3}, "frequency_penalty must be"),
        ({"logit_bias": {"x": 1}}, "logit_bias must be token ids"),
        ({"logit_bias": {"999999": 1}}, "999999"),
        ({"stop": ""}, "stop string is empty"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"budget": 300}, "budget must be at most 255"),
        ({"budget": 100000}, f"budget: Input should be less than or equal to {MAX_BUDGET}"),
        ({"budget": 0}, "budget: "),
        ({"budget": 3, "speculation": False}, "drop one"),
        ({"regex": "("}, "regex is wrong"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "not both"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"tool_choice": "required"}, "need tools"),
        ({"model": "gpt-9"}, "use 'tiny'"),
        ({"messages": []}, "messages: "),
        ({"messages": "hi"}, "messages: "),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, "weight"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "context is 1024"),
        ({"messages": [{"role": "user", "content": "<|image_pad|>"}]}, "the prompt spells"),
    ],
)
def test_bad_parameters_are_named(tiny_server: Running, body: dict[str, Any], message: str) -> None:
    for stream in (False, True):
        answer = tiny_server.chat(**body, stream=stream) if "stream_options" not in body else tiny_server.chat(**body)
        assert answer.status_code == (404 if "model" in body else 400), answer.text
        assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"messages": NaN}',
        b"[" * 100_000,
        b'{"messages":' * 50_000,
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1e400}',
        b'{"messages": [{"role": "user", "content": "a"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "a"}], "\\ud800": 1}',
        b'{"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema", "json_schema":'
        b' {"name": "x", "schema": {"\\ud800": 1, "type": "\\udfff"}}}}',
    ],
)
def test_hostile_json(tiny_server: Running, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = tiny_server.http.post("/v1/chat/completions", content=content, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


def test_only_json_is_read(tiny_server: Running) -> None:
    """What a web page can send without asking, ``text/plain``, is no request."""
    body = json.dumps({"messages": [{"role": "user", "content": "x"}]})
    answer = tiny_server.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "text/plain"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "url",
    [
        "",
        "data:",
        "data:image/png;base64,",
        "data:image/png;base64,!!!",
        data_uri(b"no image"),
        data_uri(png()[:40]),
        data_uri(b"\xff\xd8\xff" + b"\x00" * 100, "image/jpeg"),
        data_uri(BOMB),
        data_uri(b"<svg/>", "image/svg+xml"),
        data_uri(png(Image.new("RGB", (1, 900)))),
        base64.b64encode(b"GIF89a nonsense").decode(),
        "AAAA",
        "/etc/hostname",
        "etc/hostname",
        "file:///etc/hostname",
        "ftp://127.0.0.1/x.png",
        "http://127.0.0.1:1/x.png",
        "http://localhost/x.png",
        "http://[::1]/x.png",
        "http://169.254.169.254/latest/meta-data",
        "http://",
        "javascript:alert(1)",
        7,
        None,
    ],
)
def test_hostile_images(tiny_server: Running, url: Any) -> None:
    answer = tiny_server.http.post("/v1/chat/completions", json={"messages": with_image(url)})
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (data_uri(png(Image.new("1", (8001, 8001)))), "is 8001×8001 pixels, more than 64000000; send a smaller one"),
        ("data:image/png;base64,!!!", "the data URI is not valid base64; encode the whole file"),
        (data_uri(b"%PDF-1.7"), "the data URI is a PDF; send it as PNG or JPEG"),
        ("http://127.0.0.1:1/x.png", "; send the image as a data URI"),
        ("http://", "only http and https URLs with a host are fetched"),
        ("/etc/hostname", "it must be an http(s) URL, a data URI or base64; a path on this machine is not read"),
    ],
)
def test_a_bad_image_is_named_by_its_field_and_the_advice_is_for_clients(
    tiny_server: Running, url: str, message: str
) -> None:
    content = [{"type": "text", "text": "What is this?"}, *with_image(url)[0]["content"][:1]]
    assert content[1]["type"] == "image_url"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    answer = tiny_server.http.post("/v1/chat/completions", json={"messages": messages})
    said = answer.json()["error"]["message"]
    assert said.startswith("messages.1.content.1.image_url: ")
    assert message in said
    assert not re.search(r"max_pixels|max_bytes|b64encode|pass the path|load_image", said), "advice for Python"


@pytest.mark.parametrize("error", [LargeImageError, FetchError, PrivateUrlError, ImageError])
def test_advice_for_python_reaches_no_client(
    tiny_server: Running, monkeypatch: pytest.MonkeyPatch, error: type[ImageError]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error("the image is odd", "call something in Python")

    monkeypatch.setattr("oneglance.serve.reading.load_image", fail)
    answer = tiny_server.http.post("/v1/chat/completions", json={"messages": with_image(data_uri(png()))})
    said = answer.json()["error"]["message"]
    assert "image_url: the image is odd; send " in said
    assert "Python" not in said


@pytest.fixture
def neighbour() -> Iterator[str]:
    """The URL of a picture on this machine's own network."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = png()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/page.png"
        server.shutdown()
        thread.join()


def test_private_addresses_are_the_operators_to_allow(tiny: Decoder, tiny_server: Running, neighbour: str) -> None:
    """The message tells the client what a client can do, and the operator the option of the server."""
    body = {"messages": with_image(neighbour), "max_tokens": 2, "seed": 0}
    refused = tiny_server.http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert "private address of '127.0.0.1'" in message
    assert "send the image as a data URI" in message
    option = re.search(r"--[a-z-]+", message)
    assert option
    assert option[0] in {name for param in serve_command().params for name in param.opts}
    assert "allow_private_urls" not in message, "an option of Python, which no client has"
    with running(lambda: tiny, served_model_name="tiny", fetch_private_urls=True) as server:
        fetched = server.http.post("/v1/chat/completions", json=body).json()
        sent = server.http.post("/v1/chat/completions", json={**body, "messages": with_image(data_uri(png()))}).json()
        assert fetched["choices"] == sent["choices"]
        assert fetched["usage"]["prompt_tokens"] == sent["usage"]["prompt_tokens"]


def test_private_urls_need_urls() -> None:
    assert read_settings(None, {"fetch_private_urls": True}).fetch_private_urls
    with pytest.raises(InputError, match=r"fetch_private_urls.*no URL is fetched"):
        read_settings(None, {"fetch_urls": False, "fetch_private_urls": True})


def serve_command() -> Any:
    app = typer.Typer()
    app.command()(serve)
    return typer.main.get_command(app)


def test_no_string_names_a_local_file(tiny_server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "abcdabcdabcdabcdabcd"  # also sound base64
    (tmp_path / name).write_bytes(png())
    for url in (name, str(tmp_path / name), f"./{name}"):
        answer = tiny_server.http.post("/v1/chat/completions", json={"messages": with_image(url)})
        assert answer.status_code == 400


def test_limits(tiny: Decoder) -> None:
    with running(lambda: tiny, max_images=1, max_body_mb=1, fetch_urls=False, api_key="s3cret") as server:
        assert server.chat().status_code == 401
        assert server.http.get("/v1/models").status_code == 401
        unread = server.http.post("/v1/chat/completions", content=b"{", headers={"Content-Type": "application/json"})
        assert unread.status_code == 401  # the key goes before the body
        assert server.http.get("/v1/models", headers={"Authorization": "Basic s3cret"}).status_code == 401
        assert server.http.get("/v1/models", headers={"Authorization": "bearer s3cret"}).status_code == 200
        [secured] = server.http.get("/openapi.json").json()["components"]["securitySchemes"].values()
        assert secured == {"type": "http", "scheme": "bearer"}
        assert server.http.get("/health").status_code == 200
        server.http.headers["Authorization"] = "Bearer s3cret"
        assert server.chat(max_tokens=2).status_code == 200
        two = with_image(data_uri(png())) * 2
        answer = server.http.post("/v1/chat/completions", json={"messages": two})
        assert "has 2 images, more than 1" in answer.json()["error"]["message"]
        answer = server.http.post("/v1/chat/completions", json={"messages": with_image("https://example.org/x.png")})
        assert "fetches no URLs" in answer.json()["error"]["message"]
        answer = server.chat("x" * 2**20)
        assert answer.status_code == 413

        def endless() -> Any:
            for _ in range(64):
                yield b"x" * 2**16

        answer = server.http.post("/v1/completions", content=endless(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 413


def test_other_origins_and_hosts_are_kept_out(tiny_server: Running) -> None:
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = tiny_server.http.options("/v1/chat/completions", headers=preflight)
    assert "access-control-allow-origin" not in answer.headers
    assert tiny_server.http.get("/v1/models", headers={"Host": "evil.example"}).status_code == 400
    assert tiny_server.http.get("/nowhere").status_code == 404
    wrong = tiny_server.http.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "POST")
