"""schemathesis over the OpenAPI document: whatever it sends, never a server error. ``make serve-fuzz`` runs this."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.testing import tiny_head, tiny_target

from .conftest import running

schemathesis = pytest.importorskip("schemathesis", reason="pip install 'oneglance[page]'")
from schemathesis.checks import not_a_server_error  # noqa: E402

MAX_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))  # an operation
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    """A server whose answers are short, because its context is."""
    target = tiny_target("qwen3_vl", max_position_embeddings=64)
    decoder = Decoder(target, BlockDrafter(tiny_head(target), target, budget=7))
    with running(lambda: decoder, fetch_urls=False) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_no_server_error(api: Any) -> None:
    names = []
    for found in api.get_all_operations():
        operation = found.ok()
        names.append(operation.path)

        @given(case=operation.as_strategy())
        @settings(max_examples=MAX_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def check(case: Any) -> None:
            case.call_and_validate(checks=[not_a_server_error], timeout=60)

        check()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/ready", "/metrics"} <= set(names)
