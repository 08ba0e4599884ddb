"""A recording from the command line: generate, rounds and run with a speech target."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from cli.conftest import Run
from helpers import noise
from oneglance.testing import save_target, tiny_target

NGRAM = ("--drafter", "ngram", "--max-new-tokens", "12", "--dtype", "float32")


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A speech target, and two recordings and a file of prompts beside it."""
    folder = tmp_path_factory.mktemp("speech")
    target = tiny_target("whisper")
    save_target(target, folder / "target")
    for seed in (1, 2):
        wavfile.write(folder / f"{seed}.wav", 16_000, noise(seed))
    rows = [{"audio": "1.wav"}, {"audio": "2.wav", "prompt": "so", "task": "asr"}]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_generate_writes_down_what_it_hears(run: Run, speech: Path) -> None:
    answer = run("generate", "--audio", speech / "1.wav", "--target", speech / "target", *NGRAM, "--json").json
    target = tiny_target("whisper")
    features = target.processor(np.float32(noise(1)), sampling_rate=16_000, return_tensors="pt").input_features
    assert answer["token_ids"] == target.model.generate(features, max_new_tokens=12)[0].tolist()


def test_rounds_of_recordings(run: Run, speech: Path, tmp_path: Path) -> None:
    log = tmp_path / "speech.jsonl"
    arguments = ("--prompts", speech / "prompts.jsonl", "--target", speech / "target", *NGRAM, "--out", log)
    summary = run("rounds", *arguments, "--json").json
    assert (summary["num_prompts"], summary["fell_back"]) == (2, 0)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert {row["task"] for row in rows} == {"prompts", "asr"}
    assert all(row["h_nats"] >= 0 for row in rows)


def test_an_audit_of_recordings(run: Run, speech: Path) -> None:
    common = ("--target", speech / "target", *NGRAM)
    report = run("audit", "--prompts", speech / "prompts.jsonl", *common, "--json").json
    assert (report["identical"], report["total"], report["hf_generate"]["identical"]) == (2, 2, 2)
    error = run("audit", "--prompts", 1, "--tasks", "caption", *common).error
    assert error.endswith('give --prompts FILE, JSONL with an object {"audio": …} a line')


def test_run_answers_recordings(run: Run, speech: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    done = run("run", speech / "prompts.jsonl", "--target", speech / "target", *NGRAM, "--out", out, "--json").json
    assert (done["written"], done["failed"]) == (2, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--audio", "nowhere.wav"), "cannot read the audio 'nowhere.wav'"),
        (("hello",), "there is no audio; give audio=…, or --audio FILE"),
    ],
)
def test_what_cannot_be_heard_exits_with_2(run: Run, speech: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("generate", *arguments, "--target", speech / "target", *NGRAM)
    assert result.code == 2
    assert message in result.err


def test_traces_hold_no_audio(run: Run, speech: Path, tmp_path: Path) -> None:
    given = ("--prompts", speech / "prompts.jsonl", "--target", speech / "target", "--out", tmp_path / "traces")
    result = run("collect", *given)
    assert result.code == 2
    assert "has audio, and traces hold none" in result.err
