"""Tiny targets of every family, built once, and prompts with 0, 1, 2 and 8 pictures."""

from functools import cache

import pytest

from helpers import prompt
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs
from oneglance.testing import FAMILIES, VISION_FAMILIES, tiny_target

ATTENTION = ("sdpa", "eager")
IMAGE_COUNTS = (0, 1, 2, 8)


@cache
def tiny(family: str, attention: str) -> Target:
    target = tiny_target(family)
    target.model.set_attn_implementation(attention)
    return target


@pytest.fixture(scope="session", params=ATTENTION)
def attention(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=FAMILIES)
def target(request: pytest.FixtureRequest, attention: str) -> Target:
    """Every family under every attention backend."""
    return tiny(request.param, attention)


@pytest.fixture(scope="session", params=FAMILIES)
def sdpa_target(request: pytest.FixtureRequest) -> Target:
    """Every family under sdpa."""
    return tiny(request.param, "sdpa")


@pytest.fixture(scope="session", params=VISION_FAMILIES)
def vision_target(request: pytest.FixtureRequest) -> Target:
    """Every family that takes images, under sdpa."""
    return tiny(request.param, "sdpa")


@pytest.fixture(scope="session")
def qwen3_vl() -> Target:
    return tiny("qwen3_vl", "sdpa")


@pytest.fixture(scope="session")
def mllama() -> Target:
    return tiny("mllama", "sdpa")


@pytest.fixture(scope="session")
def qwen3() -> Target:
    return tiny("qwen3", "sdpa")


@pytest.fixture(
    scope="session",
    params=[
        pytest.param((family, attention, count), id=f"{family}-{attention}-{count}")
        for family in FAMILIES
        for attention in ATTENTION
        for count in (IMAGE_COUNTS if family in VISION_FAMILIES else (0,))
    ],
)
def case(request: pytest.FixtureRequest) -> tuple[Target, Inputs]:
    """A target and a prompt: every family, backend and number of images."""
    family, attention, count = request.param
    target = tiny(family, attention)
    return target, prompt(target, count)
