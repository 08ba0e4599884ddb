"""schemathesis over the OpenAPI document: whatever it sends, never a server error. ``make serve-fuzz`` runs this."""

from collections.abc import Iterator
from typing import Any

import pytest

from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.testing import tiny_head, tiny_target

from .conftest import running

schemathesis = pytest.importorskip("schemathesis", reason="pip install 'oneglance[page]'")
from schemathesis.checks import not_a_server_error  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    """A server whose answers are short, because its context is."""
    target = tiny_target("qwen3_vl", max_position_embeddings=64)
    decoder = Decoder(target, BlockDrafter(tiny_head(target), target, budget=7))
    with running(lambda: decoder, fetch_urls=False) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
def test_no_server_error(case: Any) -> None:
    case.call_and_validate(checks=[not_a_server_error], timeout=60)
