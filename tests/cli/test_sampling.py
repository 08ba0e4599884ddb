"""Sampling, log-probabilities and the gate from the command line."""

import json
from pathlib import Path

import pytest

from .conftest import Run

SAMPLED = ["--temperature", "0.8", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01", "--max-new-tokens", "20"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "-1"], "temperature must be 0 (greedy) or at least 0.001, got -1.0"),
        (["--top-p", "0"], "top_p must be above 0"),
        (["--seed", "-1"], "seed must be a whole number"),
        (["--logit-bias", "x:1"], "--logit-bias takes ID:BIAS, such as 42:-1.5, got 'x:1'"),
        (["--logit-bias", "7"], "--logit-bias takes ID:BIAS"),
        (["--bad-word", ""], "a bad word is empty"),
        (["--min-new-tokens", "300"], "min_new_tokens is 300 and max_new_tokens 256"),
        (["--logprobs", "2"], "--logprobs goes with --json"),
        (["--logprobs", "-1"], "logprobs must be a whole number"),
        (["--gate", "wide"], "--gate takes δ in logits, off, or a file that calibrate-gate wrote, got 'wide'"),
        (["--json-schema", "nowhere.json"], "--json-schema takes a schema or a file with one, and cannot read"),
        (["--json-schema", "{}", "--regex", "a"], "give json_schema or regex, not both"),
        (["--gate", "-1"], "gate must be at least 0"),
    ],
)
def test_bad_options_are_one_line(run: Run, words: list[str], message: str) -> None:
    assert message in run("generate", "x", *words).error


def test_a_seed_repeats_and_is_reported(run: Run, text_target: Path, text_head: Path) -> None:
    words = ["generate", "hello", "--target", text_target, *SAMPLED, "--json"]
    drawn = run(*words, "--head", text_head).json
    again = run(*words, "--drafter", "none", "--seed", drawn["seed"]).json
    assert again["token_ids"] == drawn["token_ids"]
    assert again["seed"] == drawn["seed"]
    other = run(*words, "--drafter", "none", "--seed", (drawn["seed"] + 1) % 2**32).json
    assert other["token_ids"] != drawn["token_ids"]
    text = run("generate", "hello", "--target", text_target, "--drafter", "none", *SAMPLED, "--seed", 5)
    assert "seed 5" in text.err


def test_choices_reach_the_target(run: Run, text_target: Path) -> None:
    words = ["generate", "hello", "--target", text_target, "--drafter", "none", "--max-new-tokens", 8, "--json"]
    assert run(*words, "--logit-bias", "65:500").json["token_ids"] == [65] * 8
    penalised = run(*words, "--logit-bias", "65:500", "--repetition-penalty", 1e6).json["token_ids"]
    assert penalised[0] == 65
    assert 65 not in penalised[1:]
    both = ["--logit-bias", "65:500", "--logit-bias", "66:499.9"]
    assert set(run(*words, *both, "--frequency-penalty", 2).json["token_ids"]) == {65, 66}
    assert run(*words, "--presence-penalty", 1, "--min-new-tokens", 8).json["num_tokens"] == 8
    assert 65 not in run(*words, "--bad-word", "b", "--logit-bias", "65:500").json["token_ids"]


def test_logprobs_in_json(run: Run, text_target: Path, text_head: Path) -> None:
    words = ["generate", "x", "--target", text_target, "--head", text_head, "--max-new-tokens", 6, "--json"]
    answer = run(*words, "--logprobs", 2).json
    assert [entry["token_id"] for entry in answer["logprobs"]] == answer["token_ids"]
    assert all(entry["top"][0] == [entry["token_id"], entry["log_p"]] for entry in answer["logprobs"])
    assert run(*words).json["logprobs"] is None


def test_gate_from_a_number_and_a_calibration(run: Run, tmp_path: Path, text_target: Path, text_head: Path) -> None:
    words = ["generate", "x", "--target", text_target, "--head", text_head, "--max-new-tokens", 12]
    plain, gated = run(*words, "--json").json, run(*words, "--gate", "1e6", "--json").json
    assert gated["token_ids"] == plain["token_ids"]
    assert gated["gate_rate"] > plain["gate_rate"] == 0
    assert "of choices gated" in run(*words, "--gate", "1e6").err
    out = tmp_path / "gate.json"
    common = ["--dtype", "float32", "--max-new-tokens", 12, "--json"]
    done = run("calibrate-gate", "--prompts", 1, "--tasks", "chartqa", "--out", out, *common)
    assert done.code == 0, done.err
    assert json.loads(out.read_text()) == done.json
    assert 0 < done.json["delta"] < 1e-2
    assert done.json["provenance"]["max_new_tokens"] == 12
    assert "measured with target builtin:reader" in run(*words, "--gate", out).error


def test_structured_output(run: Run, tmp_path: Path, text_target: Path, text_head: Path) -> None:
    pytest.importorskip("llguidance")
    words = ["generate", "x", "--target", text_target, "--head", text_head, "--json"]
    schema = (
        '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false, '
    )
    schema += '"x-guidance": {"whitespace_flexible": false}}'
    file = tmp_path / "schema.json"
    file.write_text(schema)
    for given in (schema, file):
        assert json.loads(run(*words, "--json-schema", given).json["text"]) in ({"a": 1}, {"a": 2})
    assert run(*words, "--regex", "(yes|no)").json["text"] in ("yes", "no")
    assert "regex is wrong or not supported" in run(*words, "--regex", "(").error
