"""probe, ablate and transfer on tiny models: arms in one log, figures that follow from it, bad input."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers import hf_generate, hf_rows, picture, script
from oneglance.stats.rounds import RoundRow, read_rounds, write_rounds
from oneglance.targets import open_target
from oneglance.targets.chat import encode
from simulate import simulate_rounds

from .conftest import Result, Run

TINY = ("--threads", 1, "--max-new-tokens", 10, "--dtype", "float32", "--budget", 7)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "asked.jsonl"
    lines = []
    for i in range(4):
        image = tmp_path / f"{i}.png"
        picture(i).save(image)
        task = "one" if i < 2 else "two"
        lines.append({"id": f"p{i}", "task": task, "prompt": f"Say {i} things.", "image": str(image)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def tiny(vision_target: Path, vision_head: Path, prompts: Path) -> tuple[object, ...]:
    return ("--target", vision_target, "--head", vision_head, "--prompts", prompts, *TINY)


def test_the_image_probe_holds_both_arms_and_goes_on_after_a_kill(
    run: Run, tiny: tuple[object, ...], tmp_path: Path
) -> None:
    out = tmp_path / "probe.jsonl"
    words = ("probe", "image", *tiny, "--out", out)
    first = run(*words, "--json")
    assert first.code == 0, first
    assert list(first.json["tasks"]) == ["one", "two", "pooled"]
    whole = read_rounds(out)
    arms = [[row for row in whole.rows if row.run == name] for name in ("right", "mismatched")]
    assert [(r.prompt, r.position) for r in arms[0]] == [(r.prompt, r.position) for r in arms[1]]
    assert [r.h_nats for r in arms[0]] != [r.h_nats for r in arms[1]]
    pooled, drafted = first.json["tasks"]["pooled"], [[r for r in arm if r.horizon] for arm in arms]
    for name, arm in zip(("h_right", "h_mismatched"), drafted, strict=True):
        assert pooled[name]["value"] == pytest.approx(sum(r.h_nats for r in arm) / len(arm))
    taus = [sum(r.a + 1 for r in arm) / len(arm) for arm in drafted]
    assert pooled["lift_tau"]["value"] == pytest.approx(taus[0] / taus[1] - 1)
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:-3]) + "\n")
    assert run(*words).code == 0
    assert read_rounds(out).rows == whole.rows  # forced rounds keep no times, so all is the same
    assert "other settings (budget 7, now 5)" in run(*words, "--budget", 5).error


def test_saliency_is_logged_and_read(run: Run, tiny: tuple[object, ...], tmp_path: Path) -> None:
    out = tmp_path / "rounds.jsonl"
    assert run("rounds", *tiny, "--saliency", "--out", out).code == 0
    rows = read_rounds(out).drafted.rows
    found = run("probe", "saliency", out, "--json").json["tasks"]
    assert found["pooled"]["mean_saliency"] == pytest.approx(sum(r.saliency or 0 for r in rows) / len(rows))
    assert found["one"]["num_rounds"] == sum(r.task == "one" for r in rows)
    shown = run("probe", "saliency", out)
    assert (shown.code, shown.err) == (0, "")
    assert "r(a, v | H)" in shown.out


def test_conditioning_by_arm_tree_and_chain(
    run: Run, tiny: tuple[object, ...], text_target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "arms.jsonl"
    words = ("ablate", "conditioning", *tiny, "--twin", text_target, "--out", out)
    first = run(*words, "--json")
    assert first.code == 0, first
    kept = first.json["kept"]
    assert list(kept) == ["one", "two", "pooled"]
    for tree in ("tree", "chain"):
        assert list(kept["pooled"][tree]) == ["fused", "zeroed", "text-only", "mismatched", "twin"]
        fused = kept["pooled"][tree]["fused"]
        assert fused["share"]["value"] == 1
        for arm in kept["pooled"][tree].values():
            assert arm["share"]["value"] == pytest.approx(arm["tau"]["value"] / fused["tau"]["value"])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 4
    for line in lines:  # another conditioning, the same text
        assert len({sum(rounds) for arms in line["rounds"].values() for rounds in arms.values()}) == 1
    before = out.read_bytes()
    shown = run(*words)
    assert (shown.code, shown.err) == (0, "")
    assert "pooled, zeroed" in shown.out
    assert out.read_bytes() == before  # all was there


def test_layers_alone_left_out_and_named(run: Run, tiny: tuple[object, ...]) -> None:
    found = run("ablate", "layers", *tiny, "--json").json["kept"]["pooled"]["tree"]
    assert list(found) == ["fused", "0", "1"]  # of two layers, each alone is the other one left out
    named = run("ablate", "layers", *tiny, "--subsets", "1", "--json").json["kept"]["pooled"]["tree"]
    assert named == {name: found[name] for name in ("fused", "1")}


def planted(path: Path, b0: float, b1: float, seed: int) -> Path:
    made = simulate_rounds(b0, b1, num_rounds=400, num_prompts=20, seed=seed)
    rows = [
        RoundRow(
            run="block/best_first/31",
            task="t",
            prompt=str(p),
            round=i,
            position=i,
            h_nats=float(h),
            p_max=0.5,
            top2_gap=1.0,
            a=int(a),
            a1=int(a),
            horizon=15,
            cut="none",
            budget=31,
            nodes=31,
        )
        for i, (h, a, p) in enumerate(zip(made.h_nats, made.a, made.prompts, strict=True))
    ]
    write_rounds(path, rows)
    return path


def test_a_cross_attention_target_gets_its_rows(run: Run, prompts: Path, tmp_path: Path) -> None:
    """The folder that the script makes, logged and fitted; entropies are those of transformers' own forward."""
    folder, out = tmp_path / "crossed", tmp_path / "crossed.jsonl"
    make = script("scripts/tiny_target.py").main
    make(["mllama", str(folder)])
    with pytest.raises(SystemExit, match="exists; choose another folder"):
        make(["mllama", str(folder)])
    words = ("--target", folder, "--drafter", "ngram", "--prompts", prompts, *TINY, "--max-new-tokens", 40)
    assert run("rounds", *words, "--out", out).code == 0
    log = read_rounds(out)
    target = open_target(str(folder), dtype="float32")
    for i in (0, 2):
        row = next(row for row in log.rows if row.prompt == f"p{i}")
        for number, is_own in ((i, True), (i + 1, False)):
            inputs = encode(target, f"Say {i} things.", images=[picture(number)])
            root = hf_generate(target, inputs, 1)
            p = hf_rows(target, inputs, root)[-1].double().softmax(-1)
            entropy = float(-(p * p.log()).sum())
            assert (abs(row.h_nats - entropy) < 1e-4) == is_own, "cross-attention sees the prompt's own image"
    found = run("transfer", f"crossed={out}", "--json").json
    runs = {(row["log"], row["target"], row["run"]) for row in found["rows"]}
    assert runs == {("crossed", str(folder), "ngram/best_first/7")}
    tasks = [row["task"] for row in found["rows"]]
    assert {*tasks, *(name.removeprefix("crossed: ") for name in found["excluded"])} == {"one", "two", "pooled"}
    assert tasks[-1] == "pooled"
    assert found["rows"][-1]["fit"]["law"]["num_rounds"] == len(log.drafted)
    assert found["rows"][-1]["fit"]["mean_a"]["value"] == pytest.approx(log.drafted.ints("a").mean())


def test_speech_gets_its_row_from_two_models(run: Run, tmp_path: Path) -> None:
    """Recordings, target and draft model of the script, logged and fitted; entropies are those of transformers' own
    forward, and the noise on the draft model leaves it right at times."""
    names = ("target", "draft", "tones", "log.jsonl")
    folder, draft, asked, out = (tmp_path / name for name in names)
    make = script("scripts/tiny_target.py").main
    make(["whisper", str(folder)])
    make(["whisper", str(draft), "--noise", "0.05"])
    make(["tones", str(asked)])
    with pytest.raises(SystemExit):
        make(["tones", str(tmp_path / "moved"), "--noise", "1"])
    words = ("--target", folder, "--drafter", "two_model", "--head", draft, "--prompts", asked / "prompts.jsonl")
    assert run("rounds", *words, "--limit", 3, "--max-new-tokens", 24, "--threads", 1, "--out", out).code == 0
    log = read_rounds(out)
    target = open_target(str(folder), dtype="float32")
    for name, other in (("00.wav", "01.wav"), ("01.wav", "02.wav")):
        row = next(row for row in log.rows if row.prompt == name)
        for heard, is_own in ((name, True), (other, False)):
            inputs = encode(target, "", audio=asked / heard)
            root = hf_generate(target, inputs, 1)
            p = hf_rows(target, inputs, root)[-1].double().softmax(-1)
            entropy = float(-(p * p.log()).sum())
            assert (abs(row.h_nats - entropy) < 1e-4) == is_own, "the target hears the prompt's own recording"
    accepted = log.drafted.ints("a")
    assert 0 < accepted.mean() < 8  # tokens of the draft model's chain
    (row,) = run("transfer", f"speech={out}", "--json").json["rows"]
    budget = 31  # the default of a round log
    assert (row["target"], row["run"], row["task"]) == (str(folder), f"two_model/best_first/{budget}", "tones")
    assert row["fit"]["mean_a"]["value"] == pytest.approx(accepted.mean())


def test_transfer_is_one_table(run: Run, tmp_path: Path) -> None:
    one, two = planted(tmp_path / "one.jsonl", 1, 0.8, 0), planted(tmp_path / "two.jsonl", -0.5, -0.8, 1)
    (tmp_path / "two.jsonl.run.json").write_text(json.dumps({"settings": {"target": "crossed"}}))
    found = run("transfer", one, f"speech={two}", "--json").json
    assert [(r["log"], r["target"], r["sign"], r["fit"]["verdict"]) for r in found["rows"]] == [
        ("one", None, 1, "holds"),
        ("speech", "crossed", -1, "inverted"),
    ]
    assert found["excluded"] == {}
    shown = run("transfer", one, two)
    assert (shown.code, shown.err) == (0, "")
    assert "inverted" in shown.out
    assert "two logs are named 'one'" in run("transfer", one, one).error
    assert "need NAME=LOG" in run("transfer", f"={one}").error


def test_a_log_becomes_a_page(run: Run, tmp_path: Path) -> None:
    log, page = planted(tmp_path / "one.jsonl", 1, 0.8, 0), tmp_path / "page.html"
    rows = [replace(row, saliency=0.1 + 0.01 * (row.round % 7)) for row in read_rounds(log).rows]
    write_rounds(log, [replace(row, prompt=f"{row.prompt}<b>") for row in rows])
    result = run("report", "--rounds", log, "--resamples", 19, "--strips", "none", "--out", page)
    assert result.code == 0, result
    text = page.read_text()
    for name in ("The entropy law", "The tail of the floor", "Image saliency"):
        assert f">{name}</h2>" in text
    assert "Width by entropy" not in text  # there are no marginals
    fit = run("law", log, "--json").json["fits"]["t"]
    assert f"<td>{fit['law']['b1']['value']:.3f}</td>" in text
    assert '<td class="word">holds</td>' in text
    assert ">nan<" not in text
    assert "report.html" in run("report", "--rounds", log, "--out", tmp_path / "a.csv").error


def test_logs_become_a_part_of_a_markdown_page(run: Run, tiny: tuple[object, ...], tmp_path: Path) -> None:
    log, probe, arms = planted(tmp_path / "one.jsonl", 1, 0.8, 0), tmp_path / "probe.jsonl", tmp_path / "arms.jsonl"
    found = run("probe", "image", *tiny, "--out", probe, "--json").json["tasks"]["pooled"]
    kept = run("ablate", "layers", *tiny, "--subsets", "1", "--out", arms, "--json").json["kept"]["pooled"]["tree"]
    beside = json.loads((tmp_path / "arms.jsonl.run.json").read_text())
    assert beside["settings"]["ablation"] == "layers"
    assert beside["manifest"]["command"].startswith("oneglance")  # what was typed, and no setting in its place
    assert beside["manifest"]["command"] != "ablate layers"
    page = tmp_path / "law.md"
    page.write_text("# Law\n\nwhat a person says\n\n<!-- report: written by the command -->\n<!-- /report -->\n")
    for option, own in (("--rounds", log), ("--image-probe", probe), ("--ablation", arms)):
        assert f"{own} is a log, and no result; name it by {option} {own}" in run("report", own, "--out", page).error
    words = ("report", "--rounds", log, "--image-probe", probe, "--ablation", arms, "--transfer", f"planted={log}")
    assert run(*words, "--resamples", 19, "--out", page).code == 0
    text = page.read_text()
    assert text.startswith("# Law\n\nwhat a person says\n")
    for name in ("The entropy law", "The image acts through entropy", "What the head reads: layers", "transfer?"):
        assert f"{name}\n" in text
    assert f"| pooled | {found['num_roots']} | {found['num_prompts']} | {found['lift']['value']:.3f} |" in text
    assert "An arm is named by the kept layers that stay" in text
    assert f"| {kept['1']['tau']['value']:.2f} | {kept['1']['share']['value']:.3f} |" in text
    assert "| planted | — | block/best_first/31 | t | 400 |" in text
    assert run(*words, "--resamples", 19, "--out", page).code == 0
    assert page.read_text() == text, "writing twice changes nothing"
    assert "is no log of" in run("report", "--ablation", log, "--out", page).error


def test_a_page_has_as_many_places_as_it_names(run: Run, tmp_path: Path) -> None:
    log, page = planted(tmp_path / "one.jsonl", 1, 0.8, 0), tmp_path / "law.md"
    places = [f"<!-- {name}: written by the command -->\nold {name}\n<!-- /{name} -->\n" for name in ("report", "text")]
    page.write_text("\n".join(places))
    words = ("report", "--transfer", f"planted={log}", "--out", page)
    assert run(*words, "--place", "text").code == 0
    text = page.read_text()
    assert text.startswith(places[0])
    assert "| planted | — | block/best_first/31 | t | 400 |" in text
    assert "old text" not in text
    assert "put the lines <!-- speech: written" in run(*words, "--place", "speech").error


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("probe", "image", "--max-new-tokens", "2"), "three tokens"),
        (("probe", "image", "--tasks", "docvqa", "--limit", "1"), "--limit"),
        (("probe", "saliency", "{none}"), "cannot read the round log"),
        (("ablate", "conditioning", "--drafter", "ngram", "--limit", "2"), "only a block head"),
        (("ablate", "layers", "--drafter", "none", "--limit", "2"), "only a block head"),
        (("transfer", "{none}"), "cannot read the round log"),
    ],
)
def test_bad_input_names_the_fix(run: Run, tmp_path: Path, words: tuple[str, ...], fix: str) -> None:
    assert fix in run(*(word.format(none=tmp_path / "none.jsonl") for word in words)).error


def test_subsets_of_layers_are_checked(run: Run, tiny: tuple[object, ...]) -> None:
    def error(text: str) -> str:
        result: Result = run("ablate", "layers", *tiny, "--subsets", text)
        return result.error

    assert "such as '0;0,1'" in error("a")
    assert "not 7; choose among them in --subsets" in error("0;7")
