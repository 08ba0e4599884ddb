"""``oneglance doctor``: the machine, a trial of the built-in target, and causes of low acceptance."""

import json
import shutil
from pathlib import Path

import pytest

from oneglance.commands import doctor, environment
from oneglance.commands.environment import Check, is_in_range, release, supported_range
from oneglance.commands.pairs import Spread

from .conftest import HEAD, Run

FAST = ("--threads", 1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PAIRS", 1)


def test_json(run: Run) -> None:
    result = run("doctor", *FAST, "--json")
    assert (result.code, result.err) == (0, "")
    report = result.json
    assert report["ok"] is True
    assert report["identical"] is True
    assert report["dtype"] == "float32"
    assert report["tau"] > 1
    assert report["causes"] == [] or report["speedup"] < 1
    assert report["next"].startswith("oneglance ")
    names = [check["name"] for check in report["checks"]]
    assert {"python", "torch", "transformers", "threads", "devices", "bfloat16"} <= set(names)
    assert all(check["status"] in ("ok", "note", "fail") and check["detail"] for check in report["checks"])
    assert [trial["prompt"] for trial in report["trials"]] == [prompt for prompt, _ in doctor.PROMPTS]


def test_text_ends_with_the_next_command(run: Run) -> None:
    result = run("doctor", *FAST)
    assert result.code == 0
    assert "\x1b" not in result.out
    assert result.out.splitlines()[-1].startswith("Next: oneglance ")


def test_random_head_fails_with_causes(run: Run, text_target: Path, text_head: Path) -> None:
    result = run("doctor", *FAST, "--target", text_target, "--head", text_head, "--json")
    report = result.json
    assert report["tau"] < doctor.LOW_TAU
    assert result.code == 1
    assert report["ok"] is False
    assert "drafts next to nothing" in report["verdict"]
    assert report["next"] == f"oneglance inspect {text_target} {text_head}"
    assert report["causes"] == list(doctor.CAUSES), "none of images, and none that two rounds more would change"
    assert report["page"] == "docs/troubleshooting.md#few-tokens-a-round"


def test_layers_off_by_one_are_found_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LOW_TAU", 1e9)
    monkeypatch.setattr(doctor, "mean_tau", lambda trials: 1.0)
    monkeypatch.setattr(doctor, "shifted", lambda decoder, trial, head, shift: [2e9] * 9 if shift == 1 else None)
    text = run("doctor", *FAST)
    assert text.code == 1
    assert "Likely causes: 1. Its kept layers are off by one: with [" in " ".join(text.out.split())


def test_shifting_layers_past_the_target_is_no_cause() -> None:
    from oneglance.decoder import load
    from oneglance.drafters.checkpoint import load_checkpoint

    decoder = load(dtype="float32")
    trial = doctor.run_trial(decoder, *map(str, doctor.PROMPTS[0]))
    far = decoder.target.num_layers
    assert doctor.shifted(decoder, trial, str(HEAD), far) is None
    same = doctor.shifted(decoder, trial, str(HEAD), 0)
    assert same == doctor.kept([trial])
    assert trial.comparison.drafted.tau == pytest.approx(doctor.mean_tau([trial]))
    assert load_checkpoint().config.target_layer_ids == load_checkpoint(str(HEAD)).config.target_layer_ids


def test_a_head_of_another_target_is_sent_to_the_page(run: Run, text_target: Path) -> None:
    error = run("doctor", *FAST, "--target", text_target, "--head", HEAD, "--json").error
    assert error.endswith("; read docs/troubleshooting.md#a-mismatch-is-refused")


@pytest.mark.parametrize(
    ("one", "other", "clearly"),
    [
        ([1, 1, 2, 1, 2, 1, 1, 2], [1, 1, 2, 1, 1, 1, 1, 2], False),  # 1.38 against 1.25, on one prompt each
        ([1, 9], [1, 1], False),
        ([3, 4, 3, 4, 3, 4, 3, 4], [1, 1, 2, 1, 1, 1, 1, 2], True),
        ([110] * 9, [100] * 9, False),
        ([5], [1, 1], False),
        ([5, 5], [], False),
    ],
)
def test_a_cause_needs_more_than_noise(one: list[int], other: list[int], clearly: bool) -> None:
    assert doctor.is_more(one, other) is clearly


def test_causes_that_the_card_and_the_target_know(vision_target: Path, vision_head: Path, tmp_path: Path) -> None:
    """Few answers seen are said, and what concerns images where the target reads them."""
    from oneglance.decoder import load

    head = shutil.copytree(vision_head, tmp_path / "head")
    config = json.loads((head / "config.json").read_text())
    recipe = {"name": "small", "optimiser": {"batch_size": 4, "accumulate": 2}}
    config["oneglance"] = {"training": {"step": 6, "recipe": recipe}}
    (head / "config.json").write_text(json.dumps(config))
    decoder = load(str(vision_target), str(head), dtype="float32")
    causes = doctor.likely_causes(decoder, [doctor.run_trial(decoder, "x", None)], str(head))
    assert causes[0] == "It was trained little: 6 steps, 48 answers seen, where the paper's heads saw 16,000 and more."
    assert causes[1:] == [*doctor.CAUSES, *doctor.IMAGE_CAUSES]


def test_one_measurement_has_no_interval() -> None:
    assert (str(Spread.of([0.43])), str(Spread.of([1.0, 2.0, 4.0]))) == ("0.43", "2.00 (1.00–4.00)")


def test_bad_input(run: Run, text_target: Path) -> None:
    assert "needs a draft head" in run("doctor", "--target", text_target, "--json").error


def test_version_ranges() -> None:
    assert release("5.24.0+cpu") == (5, 24, 0)
    assert is_in_range("5.17.0", ">=5.17,<6")
    assert is_in_range("5.24.0.dev1", ">=5.17,<6")
    assert not is_in_range("6.0", ">=5.17,<6")
    assert not is_in_range("5.9", ">=5.17,<6")
    assert is_in_range("2.13.0+cpu", ">=2.9,<2.14")
    assert not is_in_range("2.14.1", ">=2.9,<2.14")
    assert supported_range("transformers").startswith(">=5.1")
    assert supported_range("no-such-package") == ""


def test_version_out_of_range_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.metadata, "version", lambda name: "4.57.6")
    found = environment.check_version("transformers")
    assert found.status == "fail"
    assert f"pip install 'transformers{supported_range('transformers')}" in found.detail


def test_more_threads_than_cores_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "num_cores", lambda: 4)
    monkeypatch.setattr(environment.torch, "get_num_threads", lambda: 64)
    found = environment.check_threads()
    assert found == Check("threads", "note", found.detail)
    assert "--threads 4" in found.detail
