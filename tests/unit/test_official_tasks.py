"""Official layouts, made small, and scores worked out by hand."""

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from oneglance.bench.cases import official
from oneglance.core import InputError
from oneglance.tasks import catalogue
from oneglance.tasks.layouts import LAYOUTS, Item
from oneglance.tasks.scores import anls, exact_match, relaxed_accuracy, vqa_accuracy

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_anls_is_the_best_similarity_above_one_half() -> None:
    assert anls("kitten", ["sitting", "mitten"]) == pytest.approx(5 / 6)
    assert anls("Hello  World", ["hello world"]) == 1.0
    assert anls("abcd", ["abxy"]) == 0.5
    assert anls("abcd", ["axyz"]) == 0.0  # 1 - 3/4 is below one half
    assert anls("x", []) == 0.0


def test_relaxed_accuracy_forgives_five_percent() -> None:
    assert relaxed_accuracy("105", ["100"]) == 1.0
    assert relaxed_accuracy("105.1", ["100"]) == 0.0
    assert relaxed_accuracy("1,000", ["1000"]) == 1.0
    assert relaxed_accuracy("12%", ["0.12"]) == 1.0
    assert relaxed_accuracy("0.01", ["0"]) == 0.0
    assert relaxed_accuracy(" Blue. ", ["blue"]) == 1.0


def test_vqa_accuracy_leaves_each_annotator_out() -> None:
    three = ["cat"] * 3 + ["dog"] * 7
    # leaving out one of the three cats: 2/3; leaving out a dog: 1
    assert vqa_accuracy("a cat.", three) == pytest.approx((3 * 2 / 3 + 7 * 1) / 10)
    assert vqa_accuracy("Two", ["2"] * 10) == 1.0
    assert vqa_accuracy("bird", three) == 0.0


def test_exact_match() -> None:
    assert exact_match(" b. ", ["B"]) == 1.0
    assert exact_match("B because", ["B"]) == 0.0


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 10), "red").save(path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Every official layout, an example or two each."""

    def write(name: str, content: object) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    write("coco_captions/annotations/captions_val2017.json", {
        "images": [{"id": 7, "file_name": "7.jpg"}],
        "annotations": [{"image_id": 7, "id": 1, "caption": "A cat."}, {"image_id": 7, "id": 2, "caption": "Cat."}],
    })  # fmt: skip
    picture(tmp_path / "coco_captions/val2017/7.jpg")
    write("textvqa/TextVQA_0.5.1_val.json", {"data": [
        {"question_id": 1, "question": "What brand?", "image_id": "ab", "answers": ["x"] * 10}]})  # fmt: skip
    picture(tmp_path / "textvqa/train_images/ab.jpg")
    write("docvqa/val_v1.0.json", {"data": [
        {"questionId": 5, "question": "Date?", "image": "documents/x.png", "answers": ["1 May"]}]})  # fmt: skip
    picture(tmp_path / "docvqa/documents/x.png")
    write("infovqa/infographicsVQA_val_v1.0_withQT.json", {"data": [
        {"questionId": 6, "question": "How many?", "image_local_name": "i.jpeg", "answers": ["3"]}]})  # fmt: skip
    picture(tmp_path / "infovqa/images/i.jpeg")
    write("chartqa/test/test_human.json", [{"imgname": "c.png", "query": "Highest?", "label": "12"}])
    write("chartqa/test/test_augmented.json", [{"imgname": "c.png", "query": "Lowest?", "label": "2"}])
    picture(tmp_path / "chartqa/test/png/c.png")
    problem = {"question": "Which?", "choices": ["yes", "no"], "answer": 1, "hint": "", "image": "image.png"}
    write("scienceqa/problems.json", {"3": problem, "4": {**problem, "image": None}})
    write("scienceqa/pid_splits.json", {"test": ["3", "4"]})
    picture(tmp_path / "scienceqa/images/test/3/image.png")
    for name in ("chat", "code"):
        write(f"{name}/test.jsonl", {"id": "q1", "turns": ["Hello?", "And?"]})
    return tmp_path


@pytest.mark.parametrize("name", catalogue.names())
def test_every_official_task_loads_its_layout(data: Path, name: str) -> None:
    cases = official([name], str(data), 5)
    assert len(cases) == (2 if name == "chartqa" else 1)
    for case in cases:
        assert case.task == name
        assert "{question}" not in case.text
        assert case.text
        assert [image.size for image in case.images()] == ([] if name in ("chat", "code") else [(20, 10)])
        wanted = {"scienceqa": "B", "docvqa": "1 May", "textvqa": "x", "infovqa": "3"}.get(name)
        if wanted is not None:
            assert case.grade is not None
            assert (case.grade(wanted).right, case.grade("quite wrong").right, case.grade(wanted).total) == (1, 0, 1)


def test_the_sample_grows_with_its_limit(data: Path) -> None:
    one, two = official(["chartqa"], str(data), 1), official(["chartqa"], str(data), 2)
    assert [case.id for case in two][:1] == [case.id for case in one]


@pytest.mark.parametrize("name", catalogue.names())
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"has no|has no split"):
        official([name], str(tmp_path), 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "docvpa"}, "unknown layout 'docvpa'; choose one of coco, .*docvqa"),
        ({"layout": None}, "unknown layout None"),
        ({"metric": "f1"}, "unknown metric 'f1'; choose one of anls, .*none"),
        ({"splitt": "val"}, "splitt.*a task has the keys .*split"),
    ],
)
def test_a_task_that_is_none_is_refused_with_the_choices(change: dict[str, str], message: str) -> None:
    right = {"version": 1, "layout": "docvqa", "split": "val", "prompt": "{question}", "metric": "anls"}
    assert catalogue.task_of("mine", right).layout == "docvqa"
    with pytest.raises(InputError, match=f"task mine: .*{message}"):
        catalogue.task_of("mine", {**right, **change})
    with pytest.raises(InputError, match=r"task mine: .*prompt"):
        catalogue.task_of("mine", {key: value for key, value in right.items() if key != "prompt"})


def test_a_reader_that_names_nothing_is_helped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without our helpers: what is missing is named all the same."""
    raw = {"version": 1, "layout": "careless", "split": "val", "prompt": "{question}", "metric": "anls"}

    def careless(folder: Path, split: str) -> Iterator[Item]:
        yield from json.loads((folder / split).read_text())["rows"]

    monkeypatch.setitem(LAYOUTS, "careless", careless)
    task = catalogue.task_of("mine", raw)
    with pytest.raises(InputError, match=f"cannot read {tmp_path / 'val'}"):
        task.sample(str(tmp_path), 1)
    (tmp_path / "val").write_text("{}")
    with pytest.raises(InputError, match="not in the layout 'careless': no 'rows'"):
        task.sample(str(tmp_path), 1)


def test_a_missing_image_is_named(data: Path) -> None:
    (data / "docvqa/documents/x.png").unlink()
    (case,) = official(["docvqa"], str(data), 1)
    with pytest.raises(InputError, match=r"documents/x.png"):
        case.images()


def test_unknown_tasks_and_sources_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no official task"):
        official(["mmlu"], str(data), 1)
    with pytest.raises(InputError, match="no data set on the hub"):
        official(["chat"], "hf", 1)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"oneglance\[data\]"):
        official(["docvqa"], "hf", 1)


def test_the_hub_is_asked_for_the_named_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict[str, object]]:
        asked.append((name, config, split))
        return [{"question": "Which?", "choices": ["yes", "no"], "answer": 0, "image": Image.new("L", (4, 3))}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    (case,) = official(["scienceqa"], "hf", 3)
    assert asked == [("lmms-lab/ScienceQA", "ScienceQA-IMG", "test")]
    assert "A. yes\nB. no" in case.text
    assert case.grade is not None
    assert case.grade("A").right == 1
    assert case.images()[0].mode == "RGB"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the small real data is not here")
def test_real_files_in_the_official_layout() -> None:
    cases = official(["coco_captions"], str(SHARED), 3)
    assert len(cases) == 3
    assert max(cases[0].images()[0].size) == 640
