"""No amount is shown as 0.0 of a unit that is too large for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneglance.amounts import duration, parameters, plural, size


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (size(1), "1 byte"),
        (size(512), "512 bytes"),
        (size(31_400), "31.4 KB"),
        (size(2.1e6), "2.1 MB"),
        (size(2.1e9), "2.10 GB"),
        (parameters(23_104), "23.1 K parameters"),
        (parameters(1_048_626_432), "1.05 B parameters"),
        (duration(0.2), "a second"),
        (duration(7.6), "8 s"),
        (duration(600), "10 min"),
        (duration(36_000), "10.0 h"),
        (plural(1, "prompt"), "1 prompt"),
        (plural(0, "prompt"), "0 prompts"),
    ],
)
def test_amounts(shown: str, expected: str) -> None:
    assert shown == expected


@given(st.integers(1, 10**13))
def test_a_shown_size_is_the_size(count: int) -> None:
    number, unit = size(count).split()
    one = {"GB": 1e9, "MB": 1e6, "KB": 1e3}.get(unit, 1)
    assert float(number) * one == pytest.approx(count, rel=0.06)
