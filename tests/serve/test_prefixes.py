"""The server reuses what it has seen: no answer changes, the figures add up, nothing grows beyond its limit."""

import random
from typing import Any

import httpx
import pytest

from helpers import picture
from oneglance.decoder import Decoder
from oneglance.serve.reading import read_chat
from oneglance.serve.schema import ChatRequest
from oneglance.serve.settings import ServeSettings

from .conftest import Running, data_uri, png, running, until


def conversations() -> list[list[dict[str, Any]]]:
    """Openings that share a system prompt, an image, both, or nothing."""
    shown = [{"type": "image_url", "image_url": {"url": data_uri(png(picture(seed)))}} for seed in (1, 2)]
    system = {"role": "system", "content": "Answer in one word."}

    def user(text: str, *images: dict[str, Any]) -> dict[str, Any]:
        return {"role": "user", "content": [*images, {"type": "text", "text": text}]}

    return [
        [system, user("Read.", shown[0])],
        [system, user("Count.", shown[0])],
        [user("Read.", shown[1])],
        [system, user("hello")],
        [user("Compare.", *shown)],
    ]


def alone(decoder: Decoder, body: dict[str, Any]) -> str:
    """The answer of a decoder that reuses nothing."""
    question = read_chat(ChatRequest(**body), ServeSettings())
    fresh = Decoder(decoder.target, decoder.drafter)
    with fresh.stream_inputs(question.encode(fresh.target), question.params) as stream:
        for _ in stream:
            pass
    return stream.generation.text


@pytest.mark.parametrize("limit_mb", [0, 1, 64])
def test_a_mixed_series_equals_solo_answers(tiny: Decoder, limit_mb: int) -> None:
    rng, usages = random.Random(limit_mb), []
    with running(lambda: tiny, prefix_cache_mb=limit_mb) as server:
        going = conversations()
        for index in range(14):
            messages = rng.choice(going)
            body = {"messages": messages, "max_tokens": rng.randint(2, 6), "temperature": 0.8 * (index % 2), "seed": 3}
            if index % 5 == 4:  # a client that leaves
                with server.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as leaving:
                    next(leaving.iter_lines())
                until(lambda: server.metric("num_requests_running") == 0)
                continue
            answer = server.http.post("/v1/chat/completions", json={**body, "speculation": index % 3 > 0}).json()
            text = answer["choices"][0]["message"]["content"]
            assert text == alone(tiny, body)
            usages.append(answer["usage"])
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And?"}]
            assert server.metric("prefix_cache_bytes") <= limit_mb * 2**20
        check_figures(server, usages, limit_mb)


def check_figures(server: Running, usages: list[dict[str, Any]], limit_mb: int) -> None:
    """Counters are at least the sums of the answers; those who left count too."""
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    until(lambda: server.metric("num_requests_running") == 0)
    hits, queries = server.metric("prefix_cache_hits_total"), server.metric("prefix_cache_queries_total")
    if not limit_mb:
        assert (sum(cached), hits, queries) == (0, 0, 0)
        return
    assert sum(cached) > 0
    assert all(usage["prompt_tokens"] > count for usage, count in zip(usages, cached, strict=True))
    assert hits >= sum(cached)
    assert queries == server.metric("prompt_tokens_total") >= sum(usage["prompt_tokens"] for usage in usages)


def test_counters_are_the_sums_of_the_answers(tiny: Decoder) -> None:
    with running(lambda: tiny) as server:
        usages = [
            server.chat("the same beginning" + end, max_tokens=3).json()["usage"] for end in ("", " here", " there")
        ]
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        assert cached[0] == 0
        assert min(cached[1:]) > 18
        assert server.metric("prefix_cache_hits_total") == sum(cached)
        assert server.metric("prefix_cache_queries_total") == sum(usage["prompt_tokens"] for usage in usages)
        assert server.metric("prefix_cache_bytes") > 0


def test_a_failing_request_leaves_the_store_usable(tiny: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("broken")

    with running(lambda: tiny) as server:
        first = server.chat("hello there", max_tokens=4).json()
        with monkeypatch.context() as patch:
            patch.setattr(tiny.target, "commit", failing)
            body = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4}
            # a connection of its own: uvicorn closes it after an error
            assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).status_code == 500
        again = server.chat("hello there", max_tokens=4).json()
        assert again["choices"][0]["message"] == first["choices"][0]["message"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"] - 1
