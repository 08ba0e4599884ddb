"""``oneglance fit-head``: from a folder of pictures to a head, on a tiny target."""

from pathlib import Path

import pytest
from PIL import Image

from oneglance.drafters.checkpoint import load_checkpoint
from oneglance.train.traces import check_disjoint, read_traces

from .conftest import Run

SMALL = ["head.num_layers=1", "head.target_layer_ids=[1,2]", "head.head_dim=8", "optimiser.max_steps=4"]
SMALL += ["schedule.evaluate_every=2", "schedule.tau_prompts=1", "data.num_anchors=8", "optimiser.batch_size=2"]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for index in range(5):
        picture = Image.new("RGB", (48, 32 + 8 * index), (40 * index, 10, 200))
        picture.save(folder / ("more" if index > 2 else ".") / f"{index}.png")
    Image.open(folder / "0.png").save(folder / "copy.bmp")  # the same picture: never on both sides
    (folder / "broken.jpg").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def test_from_pictures_to_a_head(
    run: Run, vision_target: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "questions.txt").write_text("What is this?\n\nRead it.\n")
    words = ["fit-head", "--images", pictures, "--target", vision_target, "--out", tmp_path / "out", "--threads", 1]
    words += [
        "--prompts",
        tmp_path / "questions.txt",
        "--max-new-tokens",
        16,
        "--device",
        "cpu",
        "--heldout-share",
        0.3,
    ]
    said = run(*words, *SMALL, "--dry-run").err
    assert "3 pictures to learn from, 2 to judge by" in said
    assert "1 unreadable (broken.jpg); 1 left out as copies of others (copy.bmp)" in said
    assert said.count("memory: ") == 1
    dry = run(*words, *SMALL, "--dry-run", "--json").json["estimate"]
    assert dry["steps"] == 4
    assert dry["collect_s"] > 0
    assert not (tmp_path / "out" / "run").exists()
    result = run(*words, *SMALL, "--json").json
    assert result["before"] is None
    assert result["after"][-1]["tau"] >= 1
    assert result["step"] in (2, 4)
    assert load_checkpoint(result["head"]).card["training"]["step"] == result["step"]
    train, heldout = (read_traces(tmp_path / "out" / f"traces-{part}").rows for part in ("train", "heldout"))
    check_disjoint(train, heldout)
    assert len({row.image_sha256 for row in [*train, *heldout]}) == 5
    monkeypatch.setattr("oneglance.targets.open_target", None)  # nothing is done a second time, nor loaded
    done = run(*words, *SMALL)
    assert done.out.startswith(f"already finished: head of step {result['step']} in {result['head']}")
    assert run(*words, *SMALL, "--json").json == result
    changed = run(*words, *SMALL, "optimiser.lr=0.1").error
    assert "holds a run with optimiser.lr=0.0006, and now it is 0.1: give what it had" in changed
    traces = tmp_path / "out" / "traces-train" / "traces.jsonl"
    before = traces.read_text()
    Image.new("RGB", (40, 40), (1, 2, 3)).save(pictures / "new.png")
    assert "was begun with other pictures" in run(*words, *SMALL).error
    assert traces.read_text() == before
    (pictures / "new.png").unlink()
    assert "already finished" in run(*words, *SMALL).out
    monkeypatch.undo()
    warm = [*words[:6], tmp_path / "warm", *words[7:], "--init", result["head"], *SMALL[3:]]
    again = run(*warm)
    assert again.code == 0, again.err
    assert "warm start from" in again.err
    assert again.err.count("memory: ") == 1
    assert "question-2: Read it." in again.err
    assert "training samples: a head learns so few by heart" in again.err
    assert "before none" not in again.out
    assert "in " + str(tmp_path / "warm" / "run" / "head") in again.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "nowhere"], "there is no folder nowhere"),
        (["--images", "."], "a head needs two at least"),
        (["--images", "PICTURES/0.png"], "0.png is a file; --images takes a folder"),
        (["--images", "PICTURES", "--heldout-share", "0"], "leaves no picture to judge the head by"),
        (["--images", "PICTURES", "--max-new-tokens", "1"], "at least two answer tokens"),
        (["--images", "PICTURES", "--prompts", "missing"], "cannot read prompts missing"),
        (["--images", "PICTURES", "--prompts", "asked.jsonl"], "write plain questions, one a line"),
        (["--images", "PICTURES", "optimiser.speed=1"], "optimiser.speed"),
    ],
)
def test_bad_input_is_one_line(
    run: Run, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    if "asked.jsonl" in words:
        Path("asked.jsonl").write_text('{"prompt": "What is this?"}\n')
    filled = [word.replace("PICTURES", str(pictures)) for word in words]
    assert message in run("fit-head", *filled, "--out", tmp_path / "out").error


def test_answers_that_are_all_skipped_are_named_with_the_reason(
    run: Run, vision_target: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oneglance.train.collect import LocalAnswerer

    monkeypatch.setattr(LocalAnswerer, "_answer", lambda self, asked: [65])
    words = ["fit-head", "--images", pictures, "--target", vision_target, "--out", tmp_path / "out", "--limit", 2]
    for _ in range(2):  # and once more, when all are known to be skipped
        refused = run(*words, *SMALL)
        assert refused.code == 2
        error = refused.err.split("error: no trace: ")[1]
        assert error.startswith("3 prompts skipped (3 short): ")
        assert error.count(".png: the answer has one token") == 1  # one picture, three questions
        assert str(tmp_path / "out" / "traces-train" / "skipped.jsonl") in error
