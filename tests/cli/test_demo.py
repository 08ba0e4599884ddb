"""``oneglance demo``: both arms, timed in pairs, compared by token ids."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oneglance.commands import pairs, race
from oneglance.commands.demo import CHART, PAGE, PROMPT, Page, show
from oneglance.commands.pairs import Comparison, Duel, Spread
from oneglance.core import Generation, SamplingParams
from oneglance.decoder import Decoder, load
from oneglance.targets.chat import encode

from .conftest import Run

FAST = ("--pairs", 1, "--threads", 1)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return load(dtype="float32")


@pytest.fixture
def duel(decoder: Decoder) -> Duel:
    return Duel(decoder, encode(decoder.target, PROMPT, images=[PAGE]), SamplingParams(max_new_tokens=64))


def test_json(run: Run) -> None:
    result = run("demo", *FAST, "--json")
    assert (result.code, result.err) == (0, "")
    answer = result.json
    assert answer["identical"] is True
    assert answer["num_pairs"] == 1
    assert answer["dtype"] == "float32"
    assert answer["threads"] == 1
    assert answer["plain"]["token_ids"] == answer["oneglance"]["token_ids"] != []
    assert answer["plain"]["num_rounds"] == answer["plain"]["num_tokens"] - 1
    assert set(answer["speedup"]) == set(answer["plain"]["ms_per_token"]) == {"median", "min", "max", "n"}
    assert answer["true_text"].startswith("Lima Bakery\n")


def test_piped_text_names_page_and_verdict(run: Run) -> None:
    result = run("demo", *FAST)
    assert result.code == 0
    assert "\x1b" not in result.out
    assert PAGE.name in result.out
    assert "identical" in result.out
    assert "yes" in result.out
    assert "lines were read right" in result.out
    assert "reads only drawn pages of this kind" in result.out


def test_other_page_and_prompt(run: Run) -> None:
    result = run("demo", *FAST, "--image", CHART, "--prompt", "List the chart values.", "--budget", 15, "--json")
    assert result.json["images"] == [str(CHART)]
    assert result.json["budget"] == 15
    assert "lemon: 5" in result.json["true_text"]


def test_text_only_target_gets_no_page(run: Run, text_target: Path, text_head: Path) -> None:
    words = ("demo", *FAST, "--target", text_target, "--head", text_head, "--prompt", "hello", "--max-new-tokens", 12)
    result = run(*words, "--json")
    assert result.code == 0
    assert result.json["images"] == []
    assert "takes no images" in run(*words, "--image", PAGE).error


def test_true_text_is_known_only_for_our_pages_and_their_prompts() -> None:
    assert Page.of([str(PAGE)], "Something else?").true_text is None
    assert Page.of([str(PAGE), str(CHART)], PROMPT).true_text is None
    assert Page.of([__file__], PROMPT).true_text is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--image", "missing.png"], "missing.png"),
        (["--budget", 0], "--budget must be at least 1"),
        (["--max-new-tokens", -1], "--max-new-tokens must be at least 0"),
        (["--target", "./nowhere"], "there is no target at './nowhere'"),
        (["--tree", "oak"], "unknown tree policy 'oak'"),
    ],
)
def test_bad_input(run: Run, words: list[Any], message: str) -> None:
    assert message in run("demo", *words).error


def test_differing_token_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Duel.pair

    def lossy(duel: Duel, index: int) -> tuple[Generation, Generation]:
        plain, drafted = pair(duel, index)
        return plain, dataclasses.replace(drafted, token_ids=[*drafted.token_ids[:-1], 0])

    monkeypatch.setattr(Duel, "pair", lossy)
    result = run("demo", *FAST)
    assert result.code == 1
    assert "NO" in result.out
    assert run("demo", *FAST, "--json").json["identical"] is False


def test_single_token_has_no_speed(run: Run) -> None:
    result = run("demo", *FAST, "--max-new-tokens", 1, "--json")
    assert result.code == 0
    assert result.json["speedup"] is None
    assert run("demo", *FAST, "--max-new-tokens", 0).code == 0


def test_race_shows_both_answers(duel: Duel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "SHOW_MS", 10.0)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=100, height=40)
    comparison = show(console, duel, Page.of([str(PAGE)], PROMPT), num_pairs=1, tree="best_first", budget=63)
    shown = out.getvalue()
    assert "live" in shown
    plain = comparison.plain
    assert plain.text.splitlines()[-1] in shown
    assert f"{plain.num_tokens} tokens · {len(plain.rounds)} rounds" in shown


def test_race_goes_on_with_the_arm_that_decoded_for_less_time(duel: Duel) -> None:
    expected = duel.pair(0)[0]
    clocks, texts, num_tokens = [0.0, 0.0], ["", ""], [0, 0]
    for arm, step, so_far in duel.race():
        is_alone = num_tokens[1 - arm] == expected.num_tokens
        assert clocks[arm] <= clocks[1 - arm] or is_alone
        clocks[arm] = so_far.decode_ms
        texts[arm] += step.text
        num_tokens[arm] = so_far.num_tokens
    assert texts == [expected.text, expected.text]


def test_order_within_pairs_alternates(duel: Duel, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    stream = Duel._stream
    monkeypatch.setattr(Duel, "_stream", lambda duel, arm: order.append(arm) or stream(duel, arm))
    comparison = duel.compare(3)
    assert order == [pairs.PLAIN, pairs.DRAFTED, pairs.DRAFTED, pairs.PLAIN, pairs.PLAIN, pairs.DRAFTED]
    assert len(comparison.pairs) == 3
    assert len(duel.compare(100, seconds=0).pairs) == 1


def generation(token_ids: list[int], decode_ms: float) -> Generation:
    return Generation("", token_ids, "stop", 1.0, decode_ms, "t", "h", [])


def test_figures_by_hand() -> None:
    same = [1, 2, 3, 4, 5]
    times = [(8.0, 4.0), (12.0, 4.0), (10.0, 10.0)]
    comparison = Comparison(tuple((generation(same, a), generation(same, b)) for a, b in times))
    assert comparison.is_identical
    assert comparison.speedup == Spread(median=2.0, low=1.0, high=3.0, num=3)
    assert comparison.ms_per_token(pairs.PLAIN) == Spread(median=2.5, low=2.0, high=3.0, num=3)
    assert str(comparison.speedup) == "2.00 (1.00–3.00)"
    other = (generation(same, 1.0), generation([1, 2, 3, 4], 1.0))
    assert not Comparison((*comparison.pairs, other)).is_identical
