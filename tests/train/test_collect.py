"""Collecting traces: the target's own answers, bad samples counted, a killed run gone on with, leaks refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from oneglance.audit import reference
from oneglance.core import InputError
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_head, tiny_target
from oneglance.train.collect import SKIPPED, Collection, LocalAnswerer, Progress
from oneglance.train.prompts import Prompt, check_unique, read_prompts, task_prompts
from oneglance.train.traces import ROWS, check_disjoint, read_traces

NUM_TOKENS = 6


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures and a prompts file beside them; two of its prompts are bad."""
    folder = tmp_path_factory.mktemp("pages")
    for index in range(4):
        Image.new("RGB", (60 + 8 * index, 40), (50 * index, 90, 200)).save(folder / f"page{index}.png")
    Image.new("RGB", (900, 2)).save(folder / "thin.png")
    rows: list[dict[str, Any]] = [{"prompt": f"What is {i}?", "image": f"page{i}.png", "task": "doc"} for i in range(4)]
    rows += [{"prompt": "thin?", "image": "thin.png"}, {"prompt": "gone?", "image": "gone.png"}, {"prompt": "No image"}]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def collection(out: Path, target: Target, pages: Path, **options: Any) -> Collection:
    prompts = read_prompts(pages / "prompts.jsonl")
    options = {"long_side": 48, "max_new_tokens": NUM_TOKENS, "source": {"prompts": "p"}, **options}
    return Collection(out=out, prompts=prompts, target=target, **options)


def local(target: Target, drafter: Any = None) -> LocalAnswerer:
    return LocalAnswerer(Decoder(target, drafter or NoDrafter()), max_new_tokens=NUM_TOKENS)


def last(steps: Iterator[Progress]) -> Progress:
    return list(steps)[-1]


def test_answers_are_the_targets_own_at_the_serving_size(target: Target, pages: Path, tmp_path: Path) -> None:
    progress = last(collection(tmp_path, target, pages).run(local(target)))
    assert (progress.done, progress.total, progress.skipped) == (7, 7, {"aspect": 1, "image": 1})
    rows = read_traces(tmp_path).rows
    assert len(rows) == 5
    for row in rows:
        pictures = [Image.open(source).convert("RGB") for source in row.images]
        shrunk = [p.resize((48, round(p.height * 48 / p.width)), Image.Resampling.BICUBIC) for p in pictures]
        inputs = encode(target, row.prompt, images=shrunk)
        assert list(row.answer_ids) == reference(target, inputs, max_new_tokens=NUM_TOKENS).token_ids
        assert row.encode(target, long_side=48).token_ids == inputs.token_ids
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["counts"] == {"rows": 5, "tokens": progress.num_tokens, "skipped": progress.skipped}
    assert manifest["image_long_side"] == 48
    assert manifest["chat_template_sha256"] == target.fingerprint()["chat_template_sha256"]


def test_a_head_changes_no_token(target: Target, pages: Path, tmp_path: Path) -> None:
    drafter = BlockDrafter(tiny_head(target), target, budget=7)
    for name, chosen in (("plain", None), ("head", drafter)):
        last(collection(tmp_path / name, target, pages).run(local(target, chosen)))
    assert read_traces(tmp_path / "plain").rows == read_traces(tmp_path / "head").rows


def test_a_killed_run_goes_on_where_it_stopped(target: Target, pages: Path, tmp_path: Path) -> None:
    last(collection(tmp_path / "whole", target, pages).run(local(target)))
    broken = collection(tmp_path / "broken", target, pages).run(local(target))
    next(broken), next(broken)
    broken.close()
    with (tmp_path / "broken" / ROWS).open("a") as file:
        file.write('{"id": "torn')  # killed inside a line
    again = collection(tmp_path / "broken", target, pages)
    assert len(again.todo) == 5
    assert last(again.run(local(target))).done == 7
    assert read_traces(tmp_path / "broken").rows == read_traces(tmp_path / "whole").rows
    assert (tmp_path / "broken" / SKIPPED).read_text() == (tmp_path / "whole" / SKIPPED).read_text()
    third = collection(tmp_path / "broken", target, pages)
    assert third.todo == []
    assert last(third.run(local(target))).done == 7


def test_other_settings_do_not_mix(target: Target, pages: Path, tmp_path: Path) -> None:
    last(collection(tmp_path, target, pages).run(local(target)))
    with pytest.raises(InputError, match="collected with another image_long_side"):
        last(collection(tmp_path, target, pages, long_side=32).run(local(target)))


def test_bad_samples_can_be_errors(target: Target, pages: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"bad sample prompts-000005.*too thin"):
        last(collection(tmp_path, target, pages, on_bad_sample="error").run(local(target)))
    assert len(read_traces(tmp_path).rows) == 4


@pytest.mark.parametrize(
    ("answer", "reason"), [([], "empty"), ([258], "empty"), ([65], "short"), ([65, 261, 66], "placeholder")]
)
def test_answers_that_give_no_block(
    target: Target, pages: Path, tmp_path: Path, answer: list[int], reason: str
) -> None:
    class Scripted(LocalAnswerer):
        def answers(self, asked: Any) -> Any:
            for one in asked:
                yield one, answer

    scripted = Scripted(Decoder(target, NoDrafter()), max_new_tokens=NUM_TOKENS)
    assert last(collection(tmp_path, target, pages).run(scripted)).skipped[reason] == 5


def test_images_of_other_traces_are_refused(target: Target, pages: Path, tmp_path: Path) -> None:
    last(collection(tmp_path / "train", target, pages).run(local(target)))
    copy = tmp_path / "copy.png"
    Image.open(pages / "page2.png").save(copy, compress_level=1)  # the same picture in another file
    other = Image.new("RGB", (40, 40), "teal")
    other.save(tmp_path / "other.png")
    prompts = [Prompt("new", "doc", "Anything", (str(tmp_path / "other.png"), str(copy)))]
    heldout = Collection(tmp_path / "eval", prompts, target, 48, NUM_TOKENS, {}, disjoint_from=[tmp_path / "train"])
    with pytest.raises(InputError, match=r"prompt new shares an image with sample prompts-000003 of .*train"):
        last(heldout.run(local(target)))
    assert not (tmp_path / "eval" / ROWS).exists()


def test_built_in_splits_share_no_page(tmp_path: Path) -> None:
    target = tiny_target("qwen3_vl")
    for split in ("train", "eval"):
        prompts = list(task_prompts(["caption", "docvqa"], split=split, limit=2))
        last(Collection(tmp_path / split, prompts, target, 64, 3, {}).run(local(target)))
    check_disjoint(read_traces(tmp_path / "train").rows, read_traces(tmp_path / "eval").rows)


def test_the_estimate_measures_a_few_samples(target: Target, pages: Path, tmp_path: Path) -> None:
    estimate = collection(tmp_path, target, pages).estimate(local(target))
    assert estimate.num_prompts == 7
    assert 1 <= estimate.answer_tokens <= NUM_TOKENS
    assert estimate.seconds is not None
    width = 5 * target.hidden_size * 4
    assert estimate.feature_bytes == round(7 * (estimate.prompt_tokens + estimate.answer_tokens) * width)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompts"),
        ("{", "line 1 is not JSON"),
        ("[1]", 'must be an object with a text "prompt"'),
        ('{"prompt": "x", "picture": "y"}', "unknown key 'picture'"),
        ('{"prompt": "x", "image": 3}', "must be a path, a URL or a data URI"),
        ('{"prompt": "x", "id": "a"}\n{"prompt": "y", "id": "a"}', "'a' occurs twice"),
    ],
)
def test_bad_prompt_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_prompts(path)


def test_prompt_ids_must_differ() -> None:
    with pytest.raises(InputError, match="occurs twice"):
        check_unique([Prompt("a", "t", "x"), Prompt("a", "t", "y")])
