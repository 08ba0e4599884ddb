"""schemathesis over the OpenAPI document: no server error, and no answer but the written ones. ``make serve-fuzz``."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.testing import tiny_head, tiny_target

from .conftest import running

schemathesis = pytest.importorskip("schemathesis", reason="pip install 'oneglance[page]'")
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]
MAX_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))  # an operation and mode
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    """A server whose answers are short, because its context is."""
    target = tiny_target("qwen3_vl", max_position_embeddings=64)
    decoder = Decoder(target, BlockDrafter(tiny_head(target), target, budget=7))
    with running(lambda: decoder, fetch_urls=False) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_nothing_fails_but_as_the_document_says(api: Any, mode: Any) -> None:
    """What fits the document and what does not: never a server error, and only what is written there."""
    statuses: dict[str, Counter[int]] = {}
    own = CHECKS + ([checks.negative_data_rejection] if mode is GenerationMode.NEGATIVE else [])
    for found in api.get_all_operations():
        operation = found.ok()
        seen = statuses.setdefault(operation.path, Counter())
        if mode is GenerationMode.NEGATIVE and not len(operation.body):
            continue  # there is nothing to get wrong

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=MAX_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def check(case: Any) -> None:
            seen[case.call_and_validate(checks=own, timeout=60).status_code] += 1  # noqa: B023 (called at once)

        check()
    print(statuses)
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/ready", "/metrics"} <= set(statuses)
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert statuses[path][200 if mode is GenerationMode.POSITIVE else 400] > 0, statuses
